// Copies the concatenation of two arrays; a condition chooses the pointer to read from.
// In the set because one load reaches either of two buffers, and the second one's extent shrinks
// as the scalar grows.
__kernel void concat_select(__global const float *head, __global const float *tail,
                            __global float *joined, int split)
{
    int i = get_global_id(0);
    __global const float *from = i < split ? head + i : tail + (i - split);
    joined[i] = 2.0f * *from;
}
