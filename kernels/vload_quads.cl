// Scales a float array four elements a work-item with vload4/vstore4; a rest of under four stays.
// In the set as the commonest hand vectorisation: four elements for every active work-item.
__kernel void vload_quads(__global const float *in, __global float *out, float factor, int n)
{
    int i = get_global_id(0);
    if (4 * i + 3 < n)
        vstore4(factor * vload4(i, in) + 1.0f, i, out);
}
