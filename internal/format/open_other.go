//go:build !unix

package format

import "os"

const openFlags = os.O_RDONLY
