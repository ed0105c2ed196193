package check

// Exit codes of every command (shared table of cli.md and formats.md; a test lists them).
const (
	ExitPass         = 0   // something decisive was checked and nothing failed
	ExitFail         = 1   // a check failed, or CONVENTION against a declaration
	ExitUsage        = 2   // usage or configuration error, a named path that does not exist
	ExitInternal     = 3   // internal error, or the environment failed
	ExitMalformed    = 4   // malformed, refused or hostile input file
	ExitNothing      = 5   // nothing was checked
	ExitUndetermined = 6   // undetermined, and nothing failed
	ExitInterrupted  = 130 // by a signal
)

// Policy says what counts beside failures.
type Policy struct {
	FailOnWarn bool // WARN is a failure
	Strict     bool // not seen is undetermined
	Declared   bool // options were declared: CONVENTION contradicts them
}

// Exit returns the exit code of a finished run.
//
// UNDETERMINED counts: it is given only where the output is present or the check was asked for. NOTE, SKIP, not seen and untested
// decide nothing, and neither does a WARN of a check that compared nothing, nor a check of the form of the input that nobody asked
// for: a run of these alone is "nothing checked". What is known from a baseline neither fails nor is undetermined.
func Exit(results []Result, p Policy) int {
	var failed, undetermined, decided bool
	for _, r := range results {
		if r.Known && r.Verdict.bad() {
			decided = decided || r.Verdict != Undetermined && r.Compared > 0
			continue
		}
		switch r.Verdict {
		case Pass:
			decided = decided || !r.Formal || r.Demanded
		case Fail:
			failed = true
		case Convention:
			decided = true
			failed = failed || p.Declared
		case Undetermined:
			undetermined = true
		case Warn:
			decided = decided || r.Compared > 0
			failed = failed || p.FailOnWarn
		case Skip:
			undetermined = undetermined || r.Demanded
		case NotSeen, Untested:
			undetermined = undetermined || p.Strict || r.Demanded
		}
	}
	switch {
	case failed:
		return ExitFail
	case undetermined:
		return ExitUndetermined
	case !decided:
		return ExitNothing
	}
	return ExitPass
}

// Worse returns the code that wins when several apply to one run: 130, then 3, 4, 2, 1, 6, 5, 0.
func Worse(a, b int) int {
	for _, c := range []int{ExitInterrupted, ExitInternal, ExitMalformed, ExitUsage, ExitFail, ExitUndetermined, ExitNothing} {
		if a == c || b == c {
			return c
		}
	}
	return ExitPass
}
