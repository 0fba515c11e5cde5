// The part of an instrumented kernel that is the same for all: what every access and loop calls.
//
// The kernel's pointers are tags, not addresses: bit 62, the buffer's number from bit 44, an offset from
// 2^43. They may wander and be copied and cast as pointers do; only at an access is the offset recorded and
// folded into the real buffer. So no probe can fault, and no pointer arithmetic can be missed. Pointers into the
// kernel's own variables are tags, too, with numbers above those of the buffers.
#pragma OPENCL EXTENSION cl_khr_int64_base_atomics : enable
#pragma OPENCL EXTENSION cl_khr_int64_extended_atomics : enable
#pragma OPENCL EXTENSION cl_khr_byte_addressable_store : enable

#define LP_BIAS 0x0000080000000000ul
#define LP_TAG(k) (0x4000000000000000ul + LP_BIAS + ((ulong)(k) << 44))

// `mask`: of a buffer; of a variable, its bytes, 0 as long as no pointer was made into it. `spare` is where an
// access goes that is wider than the variable it was meant for.
typedef struct {
    volatile __global ulong *table;
    uint turns;
    ulong most_turns;
    ulong trace;
    ulong base[LP_TAGS];
    ulong mask[LP_TAGS];
    ulong16 spare[LP_WIDEST];
} lp_ctx;

void lp_begin(lp_ctx *c)
{
    for (uint k = LP_BUFFERS; k < LP_TAGS; ++k)
        c->mask[k] = 0;
}

// The number of a tag; LP_TAGS for what is none.
uint lp_number(ulong address)
{
    uint k = (uint)((address >> 44) & 0x3fffful);
    return (address >> 62) == 1ul && k != LP_SPARE && k < LP_TAGS ? k : LP_TAGS;
}

ulong lp_mixed(ulong v)
{
    v = (v ^ (v >> 31)) * 0x9e3779b97f4a7c15ul;
    return v ^ (v >> 29);
}

ulong lp_record(lp_ctx *c, uint k, uint site, ulong address, ulong bytes)
{
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

// Where in a variable of `size` bytes an access begins: where it was meant to if it fits, else folded back.
ulong lp_within(ulong at, ulong bytes, ulong size)
{
    if (bytes >= size)
        return 0;
    if (at <= size - bytes)
        return at;
    ulong aligned = ~((bytes & -bytes) - 1ul);
    return min(at % size & aligned, size - bytes & aligned);
}

// What `bytes` from an address stand for. What is no tag is no address either.
ulong lp_span(lp_ctx *c, uint site, ulong address, ulong bytes)
{
    uint k = lp_number(address);
    if (k < LP_BUFFERS)
        return lp_record(c, k, site, address, bytes);
    if (k == LP_TAGS || !c->mask[k]) {
        atom_or(&c->table[1], 4ul);
        return c->base[LP_SPARE];
    }
    ulong at = (address & 0xffffffffffful) - LP_BIAS, size = c->mask[k];
    c->trace += lp_mixed(address);
    if (at > size || bytes > size - at)
        atom_or(&c->table[1], 2ul);
    return c->base[k] + lp_within(at, bytes, size);
}

// An access through a pointer. A wide one must not begin at the end of its room.
ulong lp_touch(lp_ctx *c, uint site, ulong address, ulong bytes)
{
    ulong real = lp_span(c, site, address, bytes);
    uint k = lp_number(address);
    if (k < LP_BUFFERS)
        return bytes > LP_SLACK_BYTES ? c->base[k] : real;
    return k < LP_TAGS && bytes > c->mask[k] ? (ulong)c->spare : real;
}

// Through a pointer to private memory, mostly to all of a variable: a result that a function returns.
ulong lp_private(lp_ctx *c, ulong address, ulong bytes)
{
    uint k = (uint)((address >> 44) & 0x3fffful);
    if (k >= LP_BUFFERS && k < LP_TAGS && c->mask[k] == bytes && address == LP_TAG(k))
        return c->base[k];
    return lp_touch(c, 0, address, bytes);
}

// Through a pointer that may also point to a text.
ulong lp_pass(lp_ctx *c, uint site, ulong address, ulong bytes)
{
    return lp_number(address) < LP_TAGS ? lp_touch(c, site, address, bytes) : address;
}

// The place that stands for a variable where its address is taken.
ulong lp_named(lp_ctx *c, uint variable, ulong address, ulong bytes)
{
    uint k = LP_BUFFERS + variable;
    c->base[k] = address;
    c->mask[k] = bytes;
    return LP_TAG(k);
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
    uint k = lp_number(address);
    if (k == LP_TAGS)
        return 0;
    if (k < LP_BUFFERS)
        return min(wanted, c->mask[k] + 1 - (address & c->mask[k]));
    return min(wanted, c->mask[k] - lp_within((address & 0xffffffffffful) - LP_BIAS, wanted, c->mask[k]));
}
