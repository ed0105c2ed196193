package checkpoint

import (
	"fmt"
	"slices"

	"plumbline/verify/check"
)

// RunLayout checks a run folder.
var RunLayout = &check.Check[*Input]{
	Name: "run/layout",
	Doc: `a run folder has effective_config.yaml, step_N at every save_interval, final/ of the last step, and latest names a step that is there

While LOCK is there the run may be going on: then a missing final/ is a warning.`,
	Source: "outputs of PPO with a value head; crash-safe saves; fault C20",
	Fix:    "save the configuration at the start, a checkpoint at every save_interval, and final/ at the end",
	Run: func(in *Input) ([]check.Result, error) {
		f := in.Folder
		r := f.Run
		if r == nil || !r.HasConfig && (r.Final == nil || len(r.Steps) == 0) && !r.sealed() {
			return nil, nil
		}
		subject := f.Tree.Path()
		var out []check.Result
		if !r.HasConfig {
			out = append(out, fail(subject, "RUN-CONFIG", "the run cannot be repeated", "effective_config.yaml is missing"))
		}
		last := 0
		for _, s := range r.Steps {
			last = max(last, s)
		}
		var gaps []string
		if r.Every > 0 {
			end := last
			if r.Final != nil && r.Total > 0 {
				end = r.Total
			}
			for n := r.Every; n <= end && len(gaps) < 100; n += r.Every {
				if !slices.Contains(r.Steps, n) && (r.Final == nil || n != r.Total) {
					gaps = append(gaps, fmt.Sprintf("step_%d", n))
				}
			}
		}
		if len(gaps) > 0 && (r.Keep == 0 || r.Keep < 0 && !f.seen["latest"]) { // else those beyond the newest K were deleted
			out = append(out, fail(subject, "RUN-STEP", "a save was skipped or failed", "save_interval is %d, missing: %s", r.Every, several(gaps)))
		}
		switch {
		case r.Final == nil && f.seen["LOCK"]:
			out = append(out, warn(subject, "RUN-FINAL", "the run was killed, or is going on", "final/ is missing, and LOCK is there"))
		case r.Final == nil:
			out = append(out, fail(subject, "RUN-FINAL", "the run ended before its last save", "final/ is missing"))
		}
		if r.Final != nil && len(r.Steps) > 0 {
			if n, ok := stepIn(r.Final); ok && n < last {
				out = append(out, fail(subject, "RUN-FINAL", "final was not saved again after the run went on", "final/ is of step %d, step_%d is newer", n, last))
			}
		}
		if r.Latest != "" && !slices.ContainsFunc(f.Units, func(u *Unit) bool { return u.Dir == r.Latest }) {
			out = append(out, fail(subject, "RUN-LATEST", "latest names a checkpoint that was deleted or never published", "latest names %.64q, which is not there", r.Latest))
		}
		if len(out) == 0 {
			out = append(out, pass(subject, len(r.Steps)+1, "%s, final %t", plural(len(r.Steps), "step"), r.Final != nil))
		}
		return out, nil
	},
}
