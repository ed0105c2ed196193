//go:build !unix

package rundir

import (
	"errors"
	"fmt"
	"os"
)

// openFlags has nothing to keep an open from.
const openFlags = 0

// lock fails: without flock two trainers could write into one folder.
func lock(name string) (*os.File, error) {
	return nil, fmt.Errorf("locking %s: %w", name, errors.ErrUnsupported)
}
