package train

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// deviceKinds are the devices that torch names.
var deviceKinds = []string{"cpu", "cuda", "mps", "xpu", "hip", "npu", "meta"}

// maxDevice is the largest number of a device; no machine has as many.
const maxDevice = 1 << 10

// checkDevice refuses what is no name of a device as torch writes them: cpu, cuda, cuda:0.
func checkDevice(name string) error {
	kind, index, numbered := strings.Cut(name, ":")
	if !slices.Contains(deviceKinds, kind) {
		return fmt.Errorf("%q is no device: want cpu, cuda or cuda:N", name)
	}
	if numbered {
		return checkIndex(name, index)
	}
	return nil
}

func checkIndex(name, index string) error {
	if n, err := strconv.ParseUint(index, 10, 32); err != nil || n > maxDevice || len(index) > 1 && index[0] == '0' {
		return fmt.Errorf("%q is no device: its number is %q, want 0 to %d", name, index, maxDevice)
	}
	return nil
}

// checkDeviceMap refuses what accelerate does not take as device_map: a word, the name of a device, or an object of modules and devices.
func checkDeviceMap(text string) error {
	text = strings.TrimSpace(text)
	if slices.Contains([]string{"", "auto", "balanced", "balanced_low_0", "sequential"}, text) {
		return nil
	}
	if !strings.HasPrefix(text, "{") {
		return checkDevice(text)
	}
	var modules map[string]any
	if err := json.Unmarshal([]byte(text), &modules); err != nil {
		return fmt.Errorf("device_map %q: %w", text, err)
	}
	for module, device := range modules {
		switch device := device.(type) {
		case float64:
			if device != float64(int(device)) || device < 0 || device > maxDevice {
				return fmt.Errorf("device_map: the device of %q is %v, want a whole number from 0 to %d", module, device, maxDevice)
			}
		case string:
			if device == "disk" {
				continue
			}
			if err := checkDevice(device); err != nil {
				return fmt.Errorf("device_map: %q: %w", module, err)
			}
		default:
			return fmt.Errorf("device_map: the device of %q is %v, want a number or a name", module, device)
		}
	}
	return nil
}

// VisibleDevices counts the devices that CUDA_VISIBLE_DEVICES leaves: numbers, or names that begin with GPU- or MIG-, up to the first −1.
// Without it one is assumed.
func VisibleDevices(list string) (int, error) {
	if strings.TrimSpace(list) == "" {
		return 1, nil
	}
	n := 0
	for _, device := range strings.Split(list, ",") {
		device = strings.TrimSpace(device)
		switch {
		case device == "-1":
			return n, nil
		case strings.HasPrefix(device, "GPU-"), strings.HasPrefix(device, "MIG-"):
		default:
			if err := checkIndex("CUDA_VISIBLE_DEVICES="+list, device); err != nil {
				return 0, err
			}
		}
		n++
	}
	return n, nil
}
