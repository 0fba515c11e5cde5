// Moves float4 points by one 4 x 4 matrix that is a single float16.
// In the set for the widest vector type, in a buffer of one element that all work-items load.
__kernel void transform_points(__global const float16 *matrix, __global const float4 *points,
                               __global float4 *moved)
{
    int i = get_global_id(0);
    float16 m = *matrix;
    float4 p = points[i];
    moved[i] = m.s048c * p.x + m.s159d * p.y + m.s26ae * p.z + m.s37bf * p.w;
}
