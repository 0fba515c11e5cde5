// Records of addresses: the bytes that a work-group touches, and the atomics on each address.
//
// -- the bytes of a group: sectors, with a bit for each of their bytes ----------------------------
//
// c->touched has: the number of entries in the log; a mask of the hash bits that must be 0; a
// direct-mapped table of LP_TOUCHED_TABLE sectors; and a log of LP_TOUCHED_LOG sectors that other
// sectors displaced from the table. An entry is a key (group, buffer, sector) and a bit for each
// byte; the log may hold a key several times. When the log is full, it keeps only the sectors whose
// hash has one more 0 at its end, and each kept sector counts twice as much. reuse.py merges the
// entries. This is one short function, because that compiles twice as fast.
#define LP_TOUCHED_AT(n) (touched + 2 + 2 * (n))
__attribute__((noinline)) void lp_mark(lp_ctx *c, uint k, ulong at, ulong bytes)
{
    __global ulong *touched = c->touched;
    ulong first = at >> 5, last = (at + bytes - 1) >> 5;
    for (ulong n = first; n != last + 1; ++n) {
        uint bits = ~0u << (n == first ? (uint)at & 31u : 0u)
            & ~0u >> (n == last ? ~(uint)(at + bytes - 1) & 31u : 0u);
        ulong key = (ulong)c->watched << 48 | (ulong)k << 40 | (n & 0xfffffffffful);
        uint hash = lp_mix((uint)key ^ (uint)(key >> 32) * 0xC2B2AE35u);
        if (hash & (uint)touched[1])
            continue;
        __global ulong *place = LP_TOUCHED_AT(hash >> 16 & (LP_TOUCHED_TABLE - 1));
        if (place[0] != key) {
            if (place[0]) {
                if (touched[0] == LP_TOUCHED_LOG) {
                    uint kept = 0;
                    touched[1] = 2 * touched[1] + 1;
                    for (uint m = 0; m < LP_TOUCHED_LOG; ++m) {
                        __global ulong *old = LP_TOUCHED_AT(LP_TOUCHED_TABLE + m),
                            *to = LP_TOUCHED_AT(LP_TOUCHED_TABLE + kept);
                        if (lp_mix((uint)old[0] ^ (uint)(old[0] >> 32) * 0xC2B2AE35u)
                            & (uint)touched[1])
                            continue;
                        to[0] = old[0];
                        to[1] = old[1];
                        ++kept;
                    }
                    touched[0] = kept;
                }
                __global ulong *end = LP_TOUCHED_AT(LP_TOUCHED_TABLE + touched[0]++);
                end[0] = place[0];
                end[1] = place[1];
            }
            place[0] = key;
            place[1] = 0;
        }
        place[1] |= bits;
    }
}

// -- atomic operations: how many a unit has on each address ---------------------------------------
//
// c->met has, for each unit, LP_MET_SETS sets of eight addresses with counts. A new address that
// finds its set full decrements all counts of the set (Misra and Gries). So frequent addresses
// stay, and a count is too low by at most a ninth of the operations of its set.
#if LP_ATOMICS
#define LP_WAYS 8
__attribute__((noinline)) void lp_meet(lp_ctx *c, uint k, ulong at)
{
    ulong key = 1ul << 63 | (ulong)k << 48 | (at & 0xfffffffffffful);
    uint row = (uint)(at >> 2 ^ at >> 7) & (LP_MET_SETS - 1), free = LP_WAYS;
    __global ulong *set = c->met + ((ulong)c->unit * LP_MET_SETS + row) * 2 * LP_WAYS;
    for (uint n = 0; n < LP_WAYS; ++n) {
        if (set[2 * n] == key) {
            ++set[2 * n + 1];
            return;
        }
        if (!set[2 * n + 1])
            free = n;
    }
    if (free < LP_WAYS) {
        set[2 * free] = key;
        set[2 * free + 1] = 1;
        return;
    }
    for (uint n = 0; n < LP_WAYS; ++n)
        --set[2 * n + 1];
}
#endif
