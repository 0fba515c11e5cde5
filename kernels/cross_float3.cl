// Cross product of two arrays of float3, behind a guard.
// In the set for the 3-vector, whose elements take sixteen bytes and use twelve.
__kernel void cross_float3(__global const float3 *a, __global const float3 *b,
                           __global float3 *normal, int n)
{
    int i = get_global_id(0);
    if (i >= n)
        return;
    normal[i] = cross(a[i], b[i]);
}
