// Package memory says how much memory a process can still have, so that what cannot fit is refused in words before it is asked for: Go
// ends the process where an allocation fails, or the kernel kills it, and neither says why.
package memory

import (
	"fmt"
	"math"
)

// Error says that something needs more memory than there is.
type Error struct {
	What      string  // what needs it
	Need      float64 // bytes, estimated
	Available float64 // bytes, at the time
	Limit     string  // what sets the bound
}

func (e *Error) Error() string {
	return fmt.Sprintf("%s needs about %s of memory, and there are %s (%s)", e.What, size(e.Need), size(e.Available), e.Limit)
}

// size writes bytes with a unit, decimal.
func size(n float64) string {
	units := []string{"B", "kB", "MB", "GB", "TB", "PB", "EB"}
	i := 0
	for ; n >= 1000 && i < len(units)-1; i++ {
		n /= 1000
	}
	return fmt.Sprintf("%.3g %s", n, units[i])
}

// small is what is not looked at: a need below it fits where the program itself does.
const small = 64 << 20

// Need returns an *[Error] if need bytes are more than the process can still have. Where the system does not say, all fits.
func Need(need float64, what string, a ...any) error {
	if need <= small { // NaN is more than anything
		return nil
	}
	available, limit := Available()
	if need <= available {
		return nil
	}
	return &Error{fmt.Sprintf(what, a...), need, available, limit}
}

// Available returns the bytes that the process can still have, +Inf where the system does not say, and what bounds them: the least of what
// the machine has free or can free without swapping, what its control groups leave, and what the limits of the process leave.
func Available() (bytes float64, limit string) {
	bytes, limit = math.Inf(1), "no limit is known"
	for _, b := range bounds() {
		if b.bytes < bytes {
			bytes, limit = max(0, b.bytes), b.name
		}
	}
	return bytes, limit
}

// bound is one thing that limits the memory of the process.
type bound struct {
	name  string
	bytes float64 // that it leaves
}
