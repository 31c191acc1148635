/* Stands in for NVIDIA's driver in tests: built as libcuda.so.1. The collector only asks whether it is there; `doctor` asks for its
 * version, which is that of CUDA 13.0, and the tests on a GPU ask how many devices there are. */
#define X __attribute__((visibility("default")))

X int fake_cuda_is_here = 1;

X int cuDriverGetVersion(int *version) {
    *version = 13000;
    return 0;
}

X int cuInit(unsigned flags) { return flags ? 1 : 0; }

X int cuDeviceGetCount(int *count) {
    *count = 1;
    return 0;
}
