// FNV-1a hash of the sixteen bytes that start at each position (fewer at the end of the text).
// In the set for byte loads, a serial multiply chain, and windows that overlap.
#define WINDOW 16

__kernel void fnv_hash(__global const uchar *text, __global uint *hashes, int n)
{
    int i = get_global_id(0);
    if (i < n) {
        uint hash = 2166136261u;
        int end = min(i + WINDOW, n);
        for (int at = i; at < end; ++at)
            hash = (hash ^ text[at]) * 16777619u;
        hashes[i] = hash;
    }
}
