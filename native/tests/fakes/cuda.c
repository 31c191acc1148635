/* Stands in for NVIDIA's driver in tests: built as libcuda.so.1, it holds nothing. The collector only asks whether it is there. */
__attribute__((visibility("default"))) int fake_cuda_is_here = 1;
