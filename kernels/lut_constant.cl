// Decodes 4-bit codes to levels through a program-scope __constant table, times a gain each.
// In the set for divergent constant-memory reads: the table index comes from the data.
__constant float levels[16] = {
    0.0f,     0.0039f,  0.0157f,  0.0353f,  0.0627f,  0.0980f,  0.1412f,  0.1922f,
    0.2510f,  0.3176f,  0.3922f,  0.4745f,  0.5647f,  0.6627f,  0.7686f,  1.0f,
};

__kernel void lut_constant(__global const uchar *codes, __global const float *gain,
                          __global float *out, uint n)
{
    uint i = get_global_id(0);
    if (i < n)
        out[i] = gain[i] * levels[codes[i] & 15u] - 0.5f;
}
