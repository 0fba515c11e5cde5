// The part of an instrumented kernel that is the same for all: what every access and loop calls.
//
// The kernel's pointers are tags, not addresses: bit 62, the buffer's number from bit 44, an offset from
// 2^43. They may wander and be copied and cast as pointers do; only at an access is the offset recorded and
// folded into the real buffer. So no probe can fault, and no pointer arithmetic can be missed.
#pragma OPENCL EXTENSION cl_khr_int64_base_atomics : enable
#pragma OPENCL EXTENSION cl_khr_int64_extended_atomics : enable
#pragma OPENCL EXTENSION cl_khr_byte_addressable_store : enable

#define LP_TAG(k) (0x4000080000000000ul + ((ulong)(k) << 44))

typedef struct {
    volatile __global ulong *table;
    uint turns;
    ulong most_turns;
    ulong trace;
    ulong base[LP_BUFFERS];
    ulong mask[LP_BUFFERS];
} lp_ctx;

bool lp_tagged(ulong address)
{
    return (address >> 62) == 1ul && ((address >> 44) & 0x3fffful) < LP_BUFFERS;
}

ulong lp_mixed(ulong v)
{
    v = (v ^ (v >> 31)) * 0x9e3779b97f4a7c15ul;
    return v ^ (v >> 29);
}

ulong lp_record(lp_ctx *c, uint site, ulong address, ulong bytes)
{
    uint k = (uint)((address >> 44) & 0x3fffful);
    ulong at = address & 0xffffffffffful;
    volatile __global ulong *row = c->table + LP_HEAD + 2 * k;
    ulong high = ((at + bytes) << 16) | site, low = ~at;
    if (row[0] < high)
        atom_max(&row[0], high);
    if (row[1] < low)
        atom_max(&row[1], low);
    c->trace += lp_mixed(address);
    // Folded back to where an access of this size may stand: its lowest bit is what types align to.
    return c->base[k] + (at & c->mask[k] & ~((bytes & -bytes) - 1ul));
}

// An access through a pointer into global memory: what is no tag is no address either.
ulong lp_touch(lp_ctx *c, uint site, ulong address, ulong bytes)
{
    if (lp_tagged(address))
        return lp_record(c, site, address, bytes);
    atom_or(&c->table[1], 4ul);
    return c->base[LP_SPARE];
}

// Through a pointer that may also point into an array that has a name (local, constant).
ulong lp_pass(lp_ctx *c, uint site, ulong address, ulong bytes)
{
    return lp_tagged(address) ? lp_record(c, site, address, bytes) : address;
}

// An index into an array of fixed size.
ulong lp_clip(lp_ctx *c, ulong index, ulong length)
{
    c->trace += lp_mixed(index);
    if (index < length)
        return index;
    atom_or(&c->table[1], 2ul);
    return index % length;
}

// One more turn of a loop; true when the launch has had enough.
bool lp_turn(lp_ctx *c)
{
    if (++c->turns & 63u || atom_add(&c->table[0], 64ul) < c->most_turns)
        return false;
    atom_or(&c->table[1], 1ul);
    return true;
}

// One more turn of a loop that must not be left early: work-items meet at a barrier in it.
void lp_count(lp_ctx *c)
{
    if (!(++c->turns & 63u))
        atom_add(&c->table[0], 64ul);
}

// What a work-item has counted for itself, handed in at its end.
void lp_end(lp_ctx *c)
{
    atom_add(&c->table[0], (ulong)(c->turns & 63u));
    atom_add(&c->table[2], c->trace);
}

// How many of `wanted` bytes lie behind an address.
ulong lp_room(lp_ctx *c, ulong address, ulong wanted)
{
    if (!lp_tagged(address))
        return wanted;
    ulong mask = c->mask[(uint)((address >> 44) & 0x3fffful)];
    return min(wanted, mask + 1 - (address & mask));
}
