package checkpoint

import (
	"fmt"
	"path"
	"strings"

	"plumbline/verify/check"
)

const sizes = "shielded PPO, Checkpoint too large"

// pass is a finding that is in order; compared says how many things were looked at.
func pass(subject string, compared int, reason string, args ...any) check.Result {
	return check.Result{Subject: subject, Verdict: check.Pass, Compared: max(compared, 1), Reason: fmt.Sprintf(reason, args...)}
}

// fail is a finding that names its fault.
func fail(subject, fault, title, reason string, args ...any) check.Result {
	return check.Result{Subject: subject, Verdict: check.Fail, Compared: 1, Reason: fmt.Sprintf(reason, args...),
		Explanations: []check.Explanation{{Fault: fault, Title: title}}}
}

func warn(subject, fault, title, reason string, args ...any) check.Result {
	r := fail(subject, fault, title, reason, args...)
	r.Verdict = check.Warn
	return r
}

// ifAny is a finding, fail or warn, about a list of things, none where the list is empty; reason says first how many there are of what,
// then which.
func ifAny(finding func(subject, fault, title, reason string, args ...any) check.Result, subject, fault, title, what, reason string, list []string) []check.Result {
	if len(list) == 0 {
		return nil
	}
	return []check.Result{finding(subject, fault, title, reason, plural(len(list), what), several(list))}
}

// each judges the members of a list in order. The first error ends it.
func each[T any](list []T, judge func(T) ([]check.Result, error)) (out []check.Result, err error) {
	for _, x := range list {
		found, err := judge(x)
		if err != nil {
			return out, err
		}
		out = append(out, found...)
	}
	return out, nil
}

// sure is a judgement that always can be made, for each.
func sure[T any](judge func(T) []check.Result) func(T) ([]check.Result, error) {
	return func(x T) ([]check.Result, error) { return judge(x), nil }
}

// scanned is the run of a check that wants to know what the elements of all tensors are like.
func scanned(run func(in *Input) ([]check.Result, error)) func(in *Input) ([]check.Result, error) {
	return func(in *Input) ([]check.Result, error) {
		if err := in.scan(); err != nil {
			return nil, err
		}
		return run(in)
	}
}

// undetermined is a finding that could not be judged; reason says why. fault names what makes it so, "" for nothing.
func undetermined(subject, fault, title, reason string, args ...any) check.Result {
	r := check.Result{Subject: subject, Verdict: check.Undetermined, Reason: fmt.Sprintf(reason, args...)}
	if fault != "" {
		r.Explanations = []check.Explanation{{Fault: fault, Title: title}}
	}
	return r
}

func note(subject, reason string, args ...any) check.Result {
	return check.Result{Subject: subject, Verdict: check.Note, Reason: fmt.Sprintf(reason, args...)}
}

// at returns how a unit is called in the report.
func (f *Folder) at(u *Unit) string { return f.shown(u.Dir) }

// of returns the subject of a tensor.
func (f *Folder) tensor(t *Tensor) string { return f.shown(t.File) + ":" + t.Name }

// several lists the first of many things.
func several(list []string) string {
	const most = 4
	if len(list) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(list[:most], ", "), len(list)-most)
	}
	return strings.Join(list, ", ")
}

// plural returns "1 file" or "3 files".
func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%s %ss", thousands(int64(n)), what)
}

// thousands writes n with commas.
func thousands(n int64) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// megabytes writes a size as the tables of the planners do: decimal, then binary.
func megabytes(n int64) string {
	switch {
	case n < 100_000:
		return thousands(n) + " bytes"
	case n < 1e9:
		return fmt.Sprintf("%.2f MB (%.2f MiB)", float64(n)/1e6, float64(n)/(1<<20))
	}
	return fmt.Sprintf("%.2f GB (%.2f GiB)", float64(n)/1e9, float64(n)/(1<<30))
}

// base returns the last part of a name inside a tree.
func base(name string) string { return path.Base(name) }
