//go:build !unix

package cpu

import "time"

var start = time.Now()

// Time is the time since the program began: what it used of the cores is not asked for here.
func Time() time.Duration { return time.Since(start) }
