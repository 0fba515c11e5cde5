// The hooks of the memory analysis, which every access and loop of an instrumented kernel calls.
// Pointers are tags (tags.cl). An access records its offset and folds it into the real buffer.
#pragma OPENCL EXTENSION cl_khr_int64_base_atomics : enable
#pragma OPENCL EXTENSION cl_khr_int64_extended_atomics : enable
#pragma OPENCL EXTENSION cl_khr_byte_addressable_store : enable

// `mask`: for a buffer, its bytes - 1; for a variable, its bytes, or 0 if it has no pointer yet.
// `spare`: memory that is accessed in place of a variable that is smaller than the access.
typedef struct {
    volatile __global ulong *table;
    uint turns;
    bool is_cut;
    ulong most_turns;
    ulong trace;
    ulong base[LP_TAGS];
    ulong mask[LP_TAGS];
    ulong16 spare[LP_WIDEST];
} lp_ctx;

#define LP_TOO_MANY_TURNS(c) (2 * (c)->most_turns)

void lp_begin(lp_ctx *c)
{
    c->is_cut = c->table[1] & 1ul && c->table[0] > LP_TOO_MANY_TURNS(c);
    for (uint k = LP_BUFFERS; k < LP_TAGS; ++k)
        c->mask[k] = 0;
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
    // Folded back to an offset that is aligned for an access of this size (its lowest set bit).
    return c->base[k] + (at & c->mask[k] & ~((bytes & -bytes) - 1ul));
}

// Returns the real address for `bytes` bytes at `address`; a value that is no tag sets a flag.
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

// An access through a pointer. A wide access must not begin at the end of its buffer.
//
// The first case is lp_record without its calls, because copies are built unoptimised, and there
// the calls take longer than all other code.
ulong lp_touch(lp_ctx *c, uint site, ulong address, ulong bytes)
{
    ulong buffer = (address >> 44) ^ 0x40000ul;
    if (buffer < LP_BUFFERS && bytes <= LP_SLACK_BYTES) {
        ulong at = address & 0xffffffffffful, high = ((at + bytes) << 16) | site, low = ~at;
        volatile __global ulong *row = c->table + LP_HEAD + 2 * buffer;
        if (row[0] < high)
            atom_max(&row[0], high);
        if (row[1] < low)
            atom_max(&row[1], low);
        ulong v = (address ^ (address >> 31)) * 0x9e3779b97f4a7c15ul;
        c->trace += v ^ (v >> 29);
        return c->base[buffer] + (at & c->mask[buffer] & ~((bytes & -bytes) - 1ul));
    }
    ulong real = lp_span(c, site, address, bytes);
    uint k = lp_number(address);
    if (k < LP_BUFFERS)
        return bytes > LP_SLACK_BYTES ? c->base[k] : real;
    ulong has = k < LP_TAGS ? c->mask[k] : LP_SLACK_BYTES;
    return bytes > has ? (ulong)c->spare : real;
}

// Returns an index into an array of fixed size, folded back if it is beyond the end.
ulong lp_clip(lp_ctx *c, ulong index, ulong length)
{
    ulong v = (index ^ (index >> 31)) * 0x9e3779b97f4a7c15ul;
    c->trace += v ^ (v >> 29);
    if (index < length)
        return index;
    atom_or(&c->table[1], 2ul);
    return index % length;
}

// Counts a loop iteration, as `weight` iterations (turn_weights.py, at most 64); true when the launch
// has reached its limit. A loop inside others then ends early each time it runs. A launch that was
// cut off and reaches LP_TOO_MANY_TURNS ends all its loops at once, also those of later work-items.
bool lp_turn(lp_ctx *c, uint weight)
{
    if (c->is_cut)
        return true;
    uint before = c->turns;
    c->turns += weight;
    if (!((before ^ c->turns) & ~63u))
        return false;
    ulong turns = atom_add(&c->table[0], 64ul);
    if (turns < c->most_turns)
        return false;
    atom_or(&c->table[1], 1ul);
    c->is_cut = turns > LP_TOO_MANY_TURNS(c);
    return true;
}

// Counts an iteration of a loop that must not be left early, because it has a barrier.
void lp_count(lp_ctx *c, uint weight)
{
    uint before = c->turns;
    c->turns += weight;
    if ((before ^ c->turns) & ~63u)
        atom_add(&c->table[0], 64ul);
}

// Adds a work-item's own counts to the launch's record, at its end.
void lp_end(lp_ctx *c)
{
    atom_add(&c->table[0], (ulong)(c->turns & 63u));
    atom_add(&c->table[2], c->trace);
}
