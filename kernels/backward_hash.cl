// Polynomial hash of up to eight words that end at each position, read from the last to the first.
// In the set for a pointer that runs down (*p--) from the guard's side of the buffer.
#define WINDOW 8

__kernel void backward_hash(__global const uint *words, __global uint *hashes, int n)
{
    int i = get_global_id(0);
    if (i < n) {
        __global const uint *p = &words[i];
        uint hash = 17u;
        for (int left = min(i + 1, WINDOW); left > 0; --left)
            hash = hash * 31u + *p--;
        hashes[i] = hash;
    }
}
