// A driver without a GPU, for tests: memory is the host's, a launch is noted and can be read back, and environment variables choose
// failures. Only what the package calls is here.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int32_t R;
static int wants(const char *name) { const char *v = getenv("STUB_CUDA"); return v && strcmp(v, name) == 0; }

R cuInit(uint32_t flags) { return wants("no_device") ? 100 : flags != 0; }
R cuDriverGetVersion(int32_t *v) { *v = 13000; return 0; }
R cuDeviceGetCount(int32_t *n) { *n = wants("none") ? 0 : 1; return 0; }
R cuDeviceGet(int32_t *d, int32_t ordinal) { *d = 40 + ordinal; return 0; }
R cuDeviceGetName(char *name, int32_t n, int32_t d) { snprintf(name, n, "Stub %d", d); return 0; }
R cuDeviceGetAttribute(int32_t *v, int32_t attribute, int32_t d) { *v = attribute == 75 ? (wants("old") ? 7 : 9) : attribute == 76 ? 0 : -1; return d != 40; }
R cuDevicePrimaryCtxRetain(void **ctx, int32_t d) { *ctx = (void *)0x1234; return d != 40; }
R cuDevicePrimaryCtxRelease_v2(int32_t d) { return d != 40; }
R cuCtxSetCurrent(void *ctx) { return ctx != (void *)0x1234; }
R cuCtxSynchronize(void) { return wants("late") ? 700 : 0; }
R cuMemGetInfo_v2(uint64_t *free, uint64_t *total) { *free = 3ull << 32; *total = 5ull << 32; return 0; }
R cuMemAlloc_v2(uint64_t *p, uint64_t n) { if (n > 1ull << 30) return 2; *p = (uint64_t)malloc(n); return 0; }
R cuMemFree_v2(uint64_t p) { free((void *)p); return 0; }
R cuMemcpyHtoD_v2(uint64_t dst, const void *src, uint64_t n) { memcpy((void *)dst, src, n); return 0; }
R cuMemcpyDtoH_v2(void *dst, uint64_t src, uint64_t n) { memcpy(dst, (void *)src, n); return 0; }

R cuModuleLoadDataEx(void **m, const char *image, uint32_t n, const int32_t *options, void **values) {
    if (strstr(image, ".target sm_80") == NULL) return 1;
    if (wants("jit")) {
        for (uint32_t i = 0; i < n; i++)
            if (options[i] == 5) strcpy(values[i], "ptxas fatal: Unsupported .version 9.0");
        return 218;
    }
    *m = (void *)0x77;
    return 0;
}
R cuModuleUnload(void *m) { return m != (void *)0x77; }
R cuModuleGetFunction(void **f, void *m, const char *name) { *f = strdup(name); return m != (void *)0x77; }

// A launch of "add" (y += a*x) is run here from the buffer of its arguments: 8, 8, 4 and 4 bytes.
R cuLaunchKernel(void *f, uint32_t gx, uint32_t gy, uint32_t gz, uint32_t bx, uint32_t by, uint32_t bz, uint32_t shared, void *stream, void **params, void **extra) {
    if (params != NULL || stream != NULL || strcmp(f, "add") != 0 || gy != 1 || gz != 1 || by != 1 || bz != 1 || shared != (wants("overrun") || wants("host") ? 0 : 24)) return 1;
    if (extra[0] != (void *)1 || extra[2] != (void *)2 || extra[4] != NULL || *(uint64_t *)extra[3] != 24) return 1;
    char *args = extra[1];
    float *y = *(float **)args, *x = *(float **)(args + 8), a = *(float *)(args + 16);
    int32_t n = *(int32_t *)(args + 20);
    if (gx * bx < (uint32_t)n) return 1;
    for (int32_t i = 0; i < n; i++) y[i] += a * x[i];
    if (wants("overrun")) y[n] = 7;
    return 0;
}
R cuEventCreate(void **e, uint32_t flags) { *e = (void *)9; return 0; }
R cuEventRecord(void *e, void *stream) { return e != (void *)9; }
R cuEventSynchronize(void *e) { return e != (void *)9; }
R cuEventElapsedTime(float *ms, void *a, void *b) { *ms = 1.5f; return 0; }
R cuEventDestroy_v2(void *e) { return 0; }
R cuGetErrorName(int32_t code, const char **s) { *s = code == 100 ? "CUDA_ERROR_NO_DEVICE" : code == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_X"; return 0; }
R cuGetErrorString(int32_t code, const char **s) { *s = code == 100 ? "no CUDA-capable device is detected" : NULL; return 0; }
