// The part that all counted kernels share: ids of the virtual launch, counters, and memory.
//
// Pointers are tags (workers/analysis/copy/tags.cl). A buffer is a direct-mapped store of 32-byte
// blocks. A block's contents depend on its offset in the real buffer, so folding does not
// change them.
#pragma OPENCL EXTENSION cl_khr_byte_addressable_store : enable
#if LP_DOUBLES
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
#endif

#define lp_count_block(c, k) (++(c)->row[k])

typedef struct {
    __global const ulong *in;
    volatile __global ulong *out;
    __global uint *rows, *row;
    volatile __global ulong *kept;
    volatile __global uint *seen, *set, *sets;
    __global ulong *touched, *met;
    ulong number, epoch;
    ulong group[3], item[3];
    uint lane, unit, last, watched;
    ulong base[LP_TAGS];
    ulong mask[LP_TAGS];
    ulong16 spare[LP_WIDEST];
} lp_ctx;

// For each site: the block that counts its loop's iterations (24 bits); the number of requests that
// a work-item makes with one execution (7 bits); highest bit: a global atomic.
__constant uint lp_turn_of[] = LP_TURN_OF;
#define LP_IS_ATOMIC 0x80000000u
#define LP_BLOCK_OF(TURN_OF) ((TURN_OF) & 0xffffffu)
#define LP_PARTS_OF(TURN_OF) ((TURN_OF) >> 24 & 127u)

// -- ids and sizes of the virtual launch ----------------------------------------------------------

#define LP_ID(NAME, EXPRESSION, ELSE) \
    ulong NAME(lp_ctx *c, uint d) { return d < 3 ? (EXPRESSION) : ELSE; }
LP_ID(lp_get_global_size, c->in[d], 1ul)
LP_ID(lp_get_local_size, c->in[3 + d], 1ul)
LP_ID(lp_get_enqueued_local_size, c->in[3 + d], 1ul)
LP_ID(lp_get_num_groups, c->in[6 + d], 1ul)
LP_ID(lp_get_group_id, c->group[d], 0ul)
LP_ID(lp_get_local_id, c->item[d], 0ul)
LP_ID(lp_get_global_id, c->group[d] * c->in[3 + d] + c->item[d], 0ul)
LP_ID(lp_get_global_offset, 0ul, 0ul)
uint lp_get_work_dim(lp_ctx *c) { return (uint)c->in[9]; }
ulong lp_get_local_linear_id(lp_ctx *c) { return c->lane; }
ulong lp_get_global_linear_id(lp_ctx *c)
{
    return (lp_get_global_id(c, 2) * c->in[1] + lp_get_global_id(c, 1)) * c->in[0]
        + lp_get_global_id(c, 0);
}

// In touched.cl.
void lp_mark(lp_ctx *c, uint k, ulong at, ulong bytes);
void lp_meet(lp_ctx *c, uint k, ulong at);
#if LP_TRACED // in traced.cl
void lp_trace(lp_ctx *c, uint k, uint site, ulong at, ulong bytes);
#endif

// Sets the context to one work-item: `lane` of the unit's group.
__attribute__((noinline)) void lp_place_item(lp_ctx *c, uint lane)
{
    __global const ulong *unit = c->in + c->in[15] + LP_UNIT_WORDS * c->unit;
    ulong group = unit[0];
    c->lane = lane;
    c->item[0] = lane % c->in[3];
    c->item[1] = lane / c->in[3] % c->in[4];
    c->item[2] = lane / c->in[3] / c->in[4];
    c->group[0] = group % c->in[6];
    c->group[1] = group / c->in[6] % c->in[7];
    c->group[2] = group / c->in[6] / c->in[7];
    c->epoch = (c->in[10] + c->unit) & 0xfffful;
    c->row = c->rows + (unit[3] + lane - unit[1]) * LP_BLOCKS;
    for (uint k = 0; k < LP_BLOCKS; ++k)
        c->row[k] = 0;
    uint warp = lane / 32;
#if LP_BY_GROUPS
    uint apart = (uint)((unit[2] + 31) / 32 + LP_WATCHED - 1) / LP_WATCHED;
    uint place = warp / apart;
    c->set = warp % apart == 0 ? c->sets + (LP_GROUPED ? place * LP_SET_WORDS : 0) : 0;
    c->number = (ulong)c->unit * LP_WATCHED + place;
#else
    c->set = c->sets;
    c->number = c->unit;
#endif
    c->watched = (uint)unit[4];
    if (c->watched)
        c->set = 0;
    for (uint k = LP_BUFFERS; k < LP_TAGS; ++k)
        c->mask[k] = 0;
}

void lp_open(lp_ctx *c, __global const ulong *in, __global ulong *out, __global uint *rows,
             __global ulong *kept, __global uint *seen, __global uint *sets,
             __global ulong *touched, __global ulong *met, uint unit)
{
    c->in = in;
    c->out = out;
    c->rows = rows;
    c->kept = kept;
    c->seen = seen;
    c->sets = sets;
    c->touched = touched;
    c->met = met;
    c->unit = unit;
    c->base[LP_SPARE] = (ulong)c->spare;
    c->mask[LP_SPARE] = 0;
#if LP_GROUPED
    lp_place_item(c, (uint)((get_local_id(2) * get_local_size(1) + get_local_id(1))
        * get_local_size(0) + get_local_id(0)));
#else
    c->last = (uint)(in[in[15] + LP_UNIT_WORDS * unit + 1]
        + in[in[15] + LP_UNIT_WORDS * unit + 2]) - 1;
    lp_place_item(c, (uint)in[in[15] + LP_UNIT_WORDS * unit + 1]);
#endif
}

void lp_buffer(lp_ctx *c, uint k, ulong address)
{
    c->base[k] = address;
    c->mask[k] = c->in[LP_DESCRIBED + LP_WORDS * k + 8];
}

#if !LP_GROUPED
// Moves on to the next work-item of the sample; false after the last one.
bool lp_more(lp_ctx *c)
{
    if (c->lane < c->last) {
        lp_place_item(c, c->lane + 1);
        return true;
    }
    if (++c->unit >= (uint)c->in[12])
        return false;
    __global const ulong *unit = c->in + c->in[15] + LP_UNIT_WORDS * c->unit;
    c->last = (uint)(unit[1] + unit[2]) - 1;
    lp_place_item(c, (uint)unit[1]);
    return true;
}
#endif

// -- loops ---------------------------------------------------------------------------------------

// Counts one more loop iteration; true when the launch has reached its limit.
bool lp_turn(lp_ctx *c)
{
    if (++c->out[0] < c->in[14])
        return false;
    c->out[1] |= 1ul;
    return true;
}

// Counts an iteration of a loop that must not be left early, because it has a barrier.
void lp_count(lp_ctx *c) { ++c->out[0]; }

// -- contents of buffers --------------------------------------------------------------------------

uint lp_mix(uint v)
{
    v ^= v >> 16;
    v *= 0x85EBCA6Bu;
    v ^= v >> 13;
    v *= 0xC2B2AE35u;
    return v ^ (v >> 16);
}

// Returns `steps` / 2^`shift`, which is exact, as bits of a float (kind 1), double (2) or half (3).
ulong lp_float(uint kind, long steps, uint shift)
{
    if (kind == 1)
        return as_uint((float)steps * (1.0f / (float)(1ul << shift)));
#if LP_DOUBLES
    if (kind == 2)
        return as_ulong((double)steps * (1.0 / (double)(1ul << shift)));
#endif
    uint sign = steps < 0 ? 0x8000u : 0u, m = (uint)abs(steps), e = 31 - clz(m | 1u);
    return m ? sign | (e + 15 - shift) << 10 | (m << (10 - e) & 0x3ffu) : 0u;
}

// Returns scalar i of a stream as bits, by the rule of workers/plan/inputs.py. d[0] has kind, bytes
// and rule, 8 bits each.
ulong lp_scalar(__global const ulong *d, ulong i)
{
    uint how = (uint)d[0], kind = how & 255u, rule = how >> 16 & 255u;
    ulong n = d[1], limit = d[3];
    if (i >= n)
        return 0;
    uint bits = lp_mix((uint)i * 0x9E3779B9u + ((uint)d[2] ^ ((uint)(i >> 32) * 0xC2B2AE35u)));
    if (kind <= 3 && rule == 3)
        return lp_float(kind, (long)((ulong)bits * limit >> 32), 0);
    if (kind <= 3) {
        uint used = kind == 1 ? 24 : kind == 2 ? 32 : 11;
        ulong drawn = bits >> (32 - used);
        if (rule != 4)
            return lp_float(kind, (long)drawn, used);
        long steps = (long)(((drawn & ((1ul << (used - 2)) - 1)) * 3 >> 1) + (1ul << (used - 3)));
        return lp_float(kind, drawn >> (used - 1) ? -steps : steps, used - 2);
    }
    if (kind == 4)
        return bits >> 31;
    if (rule == 1 || rule == 3)
        return (ulong)bits * limit >> 32;
    if (rule == 2) {
        ulong low = i * limit / n, high = (i + 1) * limit / n;
        return low + ((ulong)bits * (high - low) >> 32);
    }
    return bits >> 28;
}

void lp_write(__global uchar *p, uint bytes, ulong value)
{
    if (bytes == 4)
        *(__global uint *)p = (uint)value;
    else if (bytes == 8)
        *(__global ulong *)p = value;
    else if (bytes == 2)
        *(__global ushort *)p = (ushort)value;
    else
        *p = (uchar)value;
}

// Fills 32 bytes with the contents of the real buffer from byte `at` on.
void lp_fill(lp_ctx *c, uint k, ulong at, __global uchar *p)
{
    __global const ulong *d = c->in + LP_DESCRIBED + LP_WORDS * k;
    uint num_leaves = (uint)d[6];
    if (num_leaves == 0) {
        uint bytes = (uint)d[0] >> 8 & 255u;
        if (bytes == 0)
            return;
        for (uint b = 0; b < 32; b += bytes)
            lp_write(p + b, bytes, lp_scalar(d, (at + b) / bytes));
        return;
    }
#if LP_LEAVES
    for (uint b = 0; b < 32; ++b)
        p[b] = 0;
    if ((long)at < 0)
        return;
    for (uint n = 0; n < num_leaves; ++n) {
        __global const ulong *leaf = c->in + d[7] + 8 * n;
        ulong bytes = leaf[0] >> 8 & 255u, offset = leaf[4] * bytes, stride = leaf[5] * bytes,
            count = leaf[6];
        for (ulong e = at / stride; e * stride < at + 32; ++e)
            for (ulong j = 0; j < count; ++j) {
                ulong to = e * stride + offset + j * bytes;
                if (to >= at && to < at + 32)
                    lp_write(p + (to - at), (uint)bytes, lp_scalar(leaf, e * count + j));
            }
    }
#endif
}

// -- accesses -------------------------------------------------------------------------------------

// Returns the slot of a sampled loop iteration, LP_TURNS for any other. The samples are the first
// eight iterations, then two iterations in each power of two.
uint lp_sampled(uint turn)
{
    if (turn < 8)
        return turn;
    uint k = 31 - clz(turn), upper = turn >> (k - 1) & 1u, span = 1u << (k - 1);
    uint slot = 8 + 2 * (k - 3) + upper;
    bool is_it = turn == (2 + upper) * span + (lp_mix(slot) & (span - 1));
    return is_it && slot < LP_TURNS ? slot : LP_TURNS;
}

// Records the sectors (32 bytes) and lines (128 bytes) that a warp's work-items touch together, or
// the addresses of their atomic operations. Of a wide access, only the first request is recorded,
// because each other request has as many sectors (estimate.py).
__attribute__((noinline)) void lp_see(lp_ctx *c, uint k, uint site, ulong at, ulong bytes)
{
    if (site >= LP_SEEN || !c->set)
        return;
    uint turn_of = lp_turn_of[site];
    bytes /= max(LP_PARTS_OF(turn_of), 1u);
    if (bytes > 256)
        return;
    bytes = max(bytes, 1ul);
    uint slot = lp_sampled(c->row[LP_BLOCK_OF(turn_of)] - 1);
    if (slot == LP_TURNS)
        return;
    volatile __global uint *count = c->seen + ((c->number * LP_SEEN + site) * LP_TURNS + slot);
    volatile __global uint *set = c->set + (site * LP_TURNS + slot) * 64;
    // The loop counts sectors. It cannot end at a last sector, because an offset below the buffer's
    // start makes `first` huge.
    uint first = (uint)(at >> 5), number = (uint)((at + bytes - 1) >> 5) - first;
    if (turn_of & LP_IS_ATOMIC) { // addresses instead of sectors
        first = (uint)(at >> 2);
        number = 0;
    }
    for (uint b = 0; b <= number; ++b) {
        uint mark = (first + b) ^ k << 28, known = *count & 0xffffu, kept = min(known, 64u);
        bool has_line = false, has_sector = false;
        for (uint j = 0; j < kept && !has_sector; ++j) {
            has_line |= set[j] >> 2 == mark >> 2;
            has_sector = set[j] == mark;
        }
        if (has_sector)
            continue;
        if (known < 64)
            set[known] = mark;
        *count += has_line ? 1u : 0x10001u;
    }
}

// Returns the place in the store for `bytes` bytes of buffer k from offset `at` on.
__attribute__((noinline)) ulong lp_stored(lp_ctx *c, uint k, ulong at, ulong bytes)
{
    ulong mask = c->mask[k], folded = at & mask;
    __global const ulong *d = c->in + LP_DESCRIBED + LP_WORDS * k;
    if (d[5]) {
        volatile __global ulong *kept = c->kept + d[5] + (folded >> 5);
        ulong first = at >> 5;
        uint number = (uint)((at + bytes - 1) >> 5) - (uint)first;
        for (ulong b = 0; b <= number; ++b) {
            ulong mark = (first + b) << 16 | c->epoch;
            if (kept[b] != mark) {
                kept[b] = mark;
                lp_fill(c, k, (first + b) << 5,
                    (__global uchar *)(c->base[k] + (((folded >> 5) + b) << 5)));
            }
        }
    }
    return c->base[k] + (folded & ~((bytes & -bytes) - 1ul));
}

// Records how far the launch reaches into argument k: before its start, and from its start on. What
// is accessed after a loop was cut off, or through a lost pointer, says nothing.
void lp_reach(lp_ctx *c, uint k, long at, ulong bytes)
{
    if (c->out[1] & 5ul)
        return;
    volatile __global long *range = (volatile __global long *)c->out + LP_RANGES + 2 * k;
    if (at < range[0])
        range[0] = at;
    if (at + (long)bytes > range[1])
        range[1] = at + (long)bytes;
}

__attribute__((noinline)) ulong lp_span(lp_ctx *c, uint site, ulong address, ulong bytes)
{
    uint k = lp_number(address);
    ulong at = (address & 0xffffffffffful) - LP_BIAS;
    if (k < LP_BUFFERS - 1)
        lp_reach(c, k, (long)at, bytes);
    if (k < LP_BUFFERS) {
        __global const ulong *d = c->in + LP_DESCRIBED + LP_WORDS * k;
        if (c->watched) {
#if LP_TRACED
            if (d[4])
                lp_trace(c, k, site, at, bytes);
#else
            if (d[9])
                lp_mark(c, k, at, min(bytes, c->mask[k] + 1));
#endif
        } else if (d[4]) {
            lp_see(c, k, site, at, bytes);
#if LP_ATOMICS
            if (lp_turn_of[site] & LP_IS_ATOMIC && d[9])
                lp_meet(c, k, at);
#endif
        }
        return lp_stored(c, k, at,
            bytes > LP_SLACK_BYTES ? min(bytes, c->mask[k] + 1 - (at & c->mask[k])) : bytes);
    }
    if (k == LP_TAGS || !c->mask[k]) {
        c->out[1] |= 4ul;
        return c->base[LP_SPARE];
    }
    return c->base[k] + lp_within(at, bytes, c->mask[k]);
}

__attribute__((noinline)) ulong lp_touch(lp_ctx *c, uint site, ulong address, ulong bytes)
{
    uint k = lp_number(address);
    if (k < LP_BUFFERS - 1 && bytes > LP_SLACK_BYTES)
        lp_reach(c, k, (long)((address & 0xffffffffffful) - LP_BIAS), bytes);
    ulong real = lp_span(c, site, address, k < LP_BUFFERS ? min(bytes, LP_SLACK_BYTES) : bytes);
    if (k < LP_BUFFERS)
        return bytes > LP_SLACK_BYTES ? c->base[k] : real;
    ulong has = k < LP_TAGS ? c->mask[k] : LP_SLACK_BYTES;
    return bytes > has ? (ulong)c->spare : real;
}

ulong lp_clip(lp_ctx *c, ulong index, ulong length)
{
    if (index < length)
        return index;
    c->out[1] |= 2ul;
    return index % length;
}

// Returns a work-item's share of n elements that its work-group copies.
uint lp_share(lp_ctx *c, ulong n)
{
    ulong lanes = c->in[3] * c->in[4] * c->in[5];
    return n > c->lane ? (uint)((n - c->lane + lanes - 1) / lanes) : 0u;
}

ulong lp_shared(lp_ctx *c, uint block, ulong n)
{
    c->row[block] += lp_share(c, n);
    return n;
}
