//go:build unix && !slow

package rundir

// How often an operation is followed by a power failure, and a process is killed at random.
const losses, kills = 8, 20
