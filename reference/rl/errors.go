package rl

import (
	"errors"
	"strconv"
)

// These are the outcomes for which a framework raises an exception.
var (
	// ErrEmptyMask: a mean or a variance of no cells. verl's and TRL's masked_var raise ValueError.
	ErrEmptyMask = errors.New("rl: the mask has no true cell")
	// ErrSingle: a variance with ddof 1 of one cell. verl's masked_var raises ValueError.
	ErrSingle = errors.New("rl: the mask has one true cell")
	// ErrGroupOfOne: a statistic of a group that has one sample. verl's pass@k raises ValueError.
	ErrGroupOfOne = errors.New("rl: a group has one sample")
)

// These are the texts of panics.
const (
	badLength = "rl: lengths do not fit"
	badOption = "rl: option out of range"
	badGroup  = "rl: group ids must lie in 0 … rows−1"
)

// need panics unless ok.
func need(ok bool, text string) {
	if !ok {
		panic(text)
	}
}

// output returns dst, or a new slice of n elements if dst is nil.
func output(dst []float64, n int) []float64 {
	if dst == nil {
		return make([]float64, n)
	}
	need(len(dst) == n, badLength)
	return dst
}

// OptionError says that an option has a value that it does not know.
type OptionError struct {
	Option, Value string
	Allowed       []string
}

func (e *OptionError) Error() string {
	text := "rl: " + e.Option + " is " + strconv.Quote(e.Value) + ", which is none of"
	for i, a := range e.Allowed {
		if i > 0 {
			text += ","
		}
		text += " " + a
	}
	return text
}
