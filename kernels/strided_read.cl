// Reads an array as 32 equal rows in column order, so neighbouring work-items load far-apart words.
// In the set as the uncoalesced read: the bytes of a copy, many times its memory transactions.
#define ROWS 32

__kernel void strided_read(__global const float *in, __global float *out)
{
    uint i = get_global_id(0);
    uint row_length = get_global_size(0) / ROWS;
    uint from = (i % ROWS) * row_length + i / ROWS;
    out[i] = in[from] + 1.0f;
}
