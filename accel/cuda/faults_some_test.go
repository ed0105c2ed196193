//go:build !slow

package cuda

// everyFault: one in so many runs by default.
const everyFault = 48
