// How many of the eight characters of a pattern match the text at each position, the last
// character repeated past the end. In the set for byte loads against a __constant argument that
// every work-item reads in the same order.
#define LENGTH 8

__kernel void string_search(__global const uchar *text, __constant uchar *pattern,
                            __global uchar *matches, uint n)
{
    uint i = get_global_id(0);
    if (i < n) {
        uchar same = 0;
        for (uint k = 0; k < LENGTH; ++k)
            same += text[min(i + k, n - 1u)] == pattern[k] ? 1 : 0;
        matches[i] = same;
    }
}
