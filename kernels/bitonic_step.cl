// One compare-and-exchange pass of a bitonic sort over the whole array, in place.
// In the set for its power-of-two partner (an XOR, so no polynomial extent) and its idle half.
__kernel void bitonic_step(__global uint *keys, uint stage, uint pass, uint n)
{
    uint i = get_global_id(0);
    uint gap = 1u << ((stage - pass) & 31u);
    uint partner = i ^ gap;
    if (partner > i && partner < n) {
        bool ascending = ((i >> (stage & 31u)) & 2u) == 0u;
        uint low = min(keys[i], keys[partner]);
        uint high = max(keys[i], keys[partner]);
        keys[i] = ascending ? low : high;
        keys[partner] = ascending ? high : low;
    }
}
