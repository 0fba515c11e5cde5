// Every work-item scales its own value by the mean of its work-group's first elements.
// In the set because the loads happen in helpers that walk a pointer handed to them, whose base
// comes from the work-group id.
#define MAX_WALK 64

float walk_sum(__global const float *at, int count)
{
    __global const float *end = at + count;
    float sum = 0.0f;
    while (at != end)
        sum += *at++;
    return sum;
}

float group_mean(__global const float *in, int count)
{
    __global const float *base = in + get_group_id(0) * get_local_size(0);
    return walk_sum(base, count) / count;
}

__kernel void helper_pointers(__global const float *in, __global const float *weight,
                              __global float *out)
{
    int count = min((int)get_local_size(0), MAX_WALK);
    __global float *mine = out + get_global_id(0);
    *mine = *(weight + get_global_id(0)) * group_mean(in, count);
}
