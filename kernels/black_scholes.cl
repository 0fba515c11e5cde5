// European call and put prices (Black and Scholes); inputs in [0, 1) become price, strike, years.
// In the set as the arithmetic-heavy map: three loads, two stores, logarithm, root, exponentials.
float normal_cdf(float d)
{
    return 0.5f * erfc(-d * 0.70710678f);
}

__kernel void black_scholes(__global const float *price01, __global const float *strike01,
                            __global const float *years01, __global float *call,
                            __global float *put, float rate, float volatility, int n)
{
    int i = get_global_id(0);
    if (i >= n)
        return;
    float price = 5.0f + 25.0f * price01[i];
    float strike = 1.0f + 99.0f * strike01[i];
    float years = 0.25f + 9.75f * years01[i];
    float spread = volatility * sqrt(years);
    float d1 = (log(price / strike) + (rate + 0.5f * volatility * volatility) * years) / spread;
    float d2 = d1 - spread;
    float discounted = strike * exp(-rate * years);
    call[i] = price * normal_cdf(d1) - discounted * normal_cdf(d2);
    put[i] = discounted * normal_cdf(-d2) - price * normal_cdf(-d1);
}
