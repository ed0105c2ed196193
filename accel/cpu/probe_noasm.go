//go:build !amd64 || purego

package cpu

// TilesInUse is false: nothing here uses tiles.
func TilesInUse() bool { return false }

var probes []Probe // what Go code reaches says nothing of a core
