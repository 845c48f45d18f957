#include "core/device.h"

mx_device *mx_device_current = &mx_host;

void mx_device_use(mx_device *device) { mx_device_current = device; }

void mx_device_release(mx_device *device)
{
    if (--device->refs == 0)
        device->destroy(device);
}
