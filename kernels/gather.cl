// out[i] = table[index[i]], with the index clamped into the table.
// In the set as the plainest data-dependent read: its locality is the data's, not the code's.
__kernel void gather(__global const int *index, __global const float *table, __global float *out,
                     int n)
{
    int i = get_global_id(0);
    if (i < n)
        out[i] = table[clamp(index[i], 0, n - 1)];
}
