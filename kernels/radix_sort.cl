// Two steps of a radix sort by four bits: digit counts a work-group, laid out digit by digit for a
// scan over all work-groups; and the stable order of each work-group's 64 keys by their digit.
// In the set for local atomics with a strided store, and for a scatter through a computed rank.
#define LANES 64
#define DIGITS 16

uint digit_of(uint key, uint shift)
{
    return (key >> (shift & 28u)) & (DIGITS - 1u);
}

__kernel __attribute__((reqd_work_group_size(LANES, 1, 1)))
void radix_histogram(__global const uint *keys, __global uint *counts, uint shift, uint n)
{
    __local uint bins[DIGITS];
    uint i = get_global_id(0);
    uint lane = get_local_id(0);
    if (lane < DIGITS)
        bins[lane] = 0u;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (i < n)
        atomic_inc(bins + digit_of(keys[i], shift));
    barrier(CLK_LOCAL_MEM_FENCE);
    if (lane < DIGITS)
        counts[lane * get_num_groups(0) + get_group_id(0)] = bins[lane];
}

__kernel __attribute__((reqd_work_group_size(LANES, 1, 1)))
void radix_scatter(__global const uint *keys, __global uint *sorted, uint shift)
{
    __local uint digits[LANES];
    uint lane = get_local_id(0);
    uint key = keys[get_group_id(0) * LANES + lane];
    uint digit = digit_of(key, shift);
    digits[lane] = digit;
    barrier(CLK_LOCAL_MEM_FENCE);
    uint rank = 0u;
    for (uint other = 0u; other < LANES; ++other) {
        uint against = digits[other];
        rank += against < digit || (against == digit && other < lane) ? 1u : 0u;
    }
    sorted[get_group_id(0) * LANES + rank] = key;
}
