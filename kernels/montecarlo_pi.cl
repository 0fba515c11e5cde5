// Counts random points inside the quarter circle, a xorshift32 stream per work-item.
// In the set as integer-heavy arithmetic that touches two words of memory a work-item.
#define MAX_TRIALS 64

uint next_random(uint state)
{
    state ^= state << 13;
    state ^= state >> 17;
    state ^= state << 5;
    return state;
}

__kernel void montecarlo_pi(__global const uint *seeds, __global uint *hits, uint trials)
{
    uint i = get_global_id(0);
    uint state = (seeds[i] + 1u) * 2654435761u ^ (i * 40503u + 1u);
    state = state == 0u ? 1u : state;  // zero is the one state xorshift never leaves
    uint count = min(trials, (uint)MAX_TRIALS);
    uint inside = 0u;
    for (uint t = 0u; t < count; ++t) {
        state = next_random(state);
        float x = (float)(state >> 8) * (1.0f / 16777216.0f);
        state = next_random(state);
        float y = (float)(state >> 8) * (1.0f / 16777216.0f);
        inside += x * x + y * y < 1.0f ? 1u : 0u;
    }
    hits[i] = inside;
}
