// Exclusive prefix sum of 128 elements a work-group (Blelloch: up and down a tree in local memory)
// with each work-group's total; and the step that joins all work-groups into one inclusive scan.
// In the set beside scan_inclusive: less work, twice the barriers; and a load at group - 1.
#define LANES 128

__kernel __attribute__((reqd_work_group_size(LANES, 1, 1)))
void scan_blelloch(__global const int *in, __global int *out, __global int *totals, int n)
{
    __local int tree[LANES];
    int i = get_global_id(0);
    int lane = get_local_id(0);
    tree[lane] = i < n ? in[i] : 0;
    for (int gap = 1; gap < LANES; gap *= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        int at = (lane + 1) * 2 * gap - 1;
        if (at < LANES)
            tree[at] += tree[at - gap];
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    if (lane == 0) {
        totals[get_group_id(0)] = tree[LANES - 1];
        tree[LANES - 1] = 0;
    }
    for (int gap = LANES / 2; gap > 0; gap /= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        int at = (lane + 1) * 2 * gap - 1;
        if (at < LANES) {
            int left = tree[at - gap];
            tree[at - gap] = tree[at];
            tree[at] += left;
        }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    if (i < n)
        out[i] = tree[lane];
}

__kernel void scan_add_totals(__global int *sums, __global const int *in,
                              __global const int *scanned_totals)
{
    int group = get_group_id(0);
    int before = group > 0 ? scanned_totals[group - 1] : 0;
    sums[get_global_id(0)] += before + in[get_global_id(0)];
}
