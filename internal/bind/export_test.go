package bind

import "plumbline/internal/train"

// ReplaceFast puts another accelerated policy into a lockstep, for the tests of what it finds.
func ReplaceFast(l *Lockstep, fast *Accelerated) { l.fast, l.run = fast, fast }

// OpenBare opens a base without its tokenizer.
func OpenBare(name string) (*Base, error) { return openBase(name, 3, true) }

// ReplaceRun puts another policy of the kernels into a lockstep.
func ReplaceRun(l *Lockstep, run train.Policy) { l.run = run }
