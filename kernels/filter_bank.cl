// Four-tap filters, a structure of coefficients for each output, the line's end repeated.
// In the set for array members of structures (s[i].b[2]), read from one structure type and written
// to another.
struct filter {
    float b[4];
    short gain;
    uchar delay;
};

struct response {
    float value[2];
    int source;
};

__kernel void filter_bank(__global const struct filter *filters, __global const float *line,
                          __global struct response *responses, int n)
{
    int i = get_global_id(0);
    if (i < n) {
        int last = n - 1;
        float sum = filters[i].b[0] * line[i];
        sum += filters[i].b[1] * line[min(i + 1, last)];
        sum += filters[i].b[2] * line[min(i + 2, last)];
        sum += filters[i].b[3] * line[min(i + 3, last)];
        responses[i].value[0] = sum * filters[i].gain;
        responses[i].value[1] = sum;
        responses[i].source = i - filters[i].delay;
    }
}
