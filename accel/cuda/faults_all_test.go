//go:build slow

package cuda

import "plumbline/internal/cases"

// everyFault: all run in the slow suite, or one of those that PLANTS says.
var everyFault = cases.Planted()
