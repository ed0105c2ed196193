//go:build !unix

package format

import "os"

const openFlags = os.O_RDONLY

const ownFlags = 0

// tryLock knows no locks: a temporary file that is there may be another process's, and stays.
func tryLock(*os.File) (mine, known bool) { return false, false }

func otherNames(os.FileInfo) bool { return false }
