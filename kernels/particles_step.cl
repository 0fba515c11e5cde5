// Moves particles by one time step between the walls of the unit cube, counting bounces, in place.
// In the set for an array of structures with members of several types: strided loads and stores of
// four bytes out of 36, through -> on a sum, on a pointer variable and in a helper.
typedef struct {
    float position[3];
    int cell;
    float velocity[3];
    uint bounces;
    short kind;
    uchar flags[2];
} particle_t;

void bounce(__global particle_t *particle, int axis)
{
    float at = particle->position[axis];
    if (at < 0.0f || at > 1.0f) {
        particle->position[axis] = clamp(at, 0.0f, 1.0f);
        particle->velocity[axis] = -particle->velocity[axis];
        particle->bounces += 1u;
    }
}

__kernel void particles_step(__global particle_t *particles, float step, int n)
{
    int i = get_global_id(0);
    if (i >= n)
        return;
    __global particle_t *mine = particles + i;
    for (int axis = 0; axis < 3; ++axis) {
        (particles + i)->position[axis] += step * mine->velocity[axis];
        bounce(mine, axis);
    }
    mine->cell = (int)(mine->position[0] * 8.0f) + mine->kind;
    mine->flags[1] = mine->flags[0] ^ 1;
}
