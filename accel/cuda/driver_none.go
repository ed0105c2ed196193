//go:build nocuda || (!cu && (!(linux || darwin) || !(amd64 || arm64)))

package cuda

import "fmt"

// Library is the driver's file where the loader finds it.
const Library = "libcuda.so.1"

// Open says that this program was built without a way to a driver (tag nocuda, or a platform that has none).
func Open(path string, ordinal int) (Device, error) {
	return nil, fmt.Errorf("%w: this program was built without the CUDA driver", ErrNoDevice)
}
