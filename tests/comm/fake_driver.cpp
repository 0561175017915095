// A driver of NVIDIA's devices for tests of what is asked of one: says what it is compiled to say.

extern "C" {

int cuInit(unsigned) { return FAKE_DRIVER_ERROR; }

int cuDriverGetVersion(int* version) {
  *version = 12040;
  return 0;
}

int cuDeviceGetCount(int* count) {
  *count = FAKE_DRIVER_DEVICES;
  return 0;
}
}
