package internal_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"plumbline/internal/cases"
)

// action is a composite action of GitHub.
type action struct {
	Inputs map[string]struct {
		Default  string
		Required bool
	}
	Outputs map[string]struct{ Value string }
	Runs    struct {
		Using string
		Steps []struct {
			Name, ID, If, Shell, Run string
			Env                      map[string]string
		}
	}
}

// runAction runs the steps of the action as the runner does, and returns the exit code of the last and what the files of
// GitHub hold then.
func runAction(t *testing.T, a *action, dir string, inputs map[string]string) (code int, summary, output, log string) {
	t.Helper()
	root, err := filepath.Abs("..")
	require.NoError(t, err)
	temp := t.TempDir()
	for name, in := range a.Inputs {
		if _, given := inputs[name]; !given {
			require.False(t, in.Required, name)
			inputs[name] = in.Default
		}
	}
	expression := regexp.MustCompile(`\$\{\{\s*([a-z_.-]+)\s*\}\}`)
	evaluate := func(s string) string {
		return expression.ReplaceAllStringFunc(s, func(e string) string {
			name := expression.FindStringSubmatch(e)[1]
			if name == "github.action_path" {
				return filepath.Join(root, ".github/actions/verify")
			}
			v, is := inputs[strings.TrimPrefix(name, "inputs.")]
			require.True(t, is, "%s is no input", e)
			return v
		})
	}
	env := append(os.Environ(), "GITHUB_ACTIONS=true", "RUNNER_TEMP="+temp, "GITHUB_STEP_SUMMARY="+filepath.Join(temp, "summary"), "GITHUB_OUTPUT="+filepath.Join(temp, "output"))
	for _, step := range a.Runs.Steps {
		require.Equal(t, "bash", step.Shell)
		require.NotContains(t, step.Run, "${{", "an expression in a script is code that the caller writes")
		if step.If != "" {
			require.Equal(t, "inputs.binary == ''", step.If)
			if inputs["binary"] != "" {
				continue
			}
		}
		cmd := exec.Command("bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step.Run)
		cmd.Dir, cmd.Env = dir, env
		for k, v := range step.Env {
			cmd.Env = append(cmd.Env, k+"="+evaluate(v))
		}
		out, err := cmd.CombinedOutput()
		log += string(out)
		if code = cmd.ProcessState.ExitCode(); err != nil {
			break
		}
	}
	read := func(name string) string {
		text, _ := os.ReadFile(filepath.Join(temp, name))
		return string(text)
	}
	return code, read("summary"), read("output"), log
}

// The commands of the action run in this checkout, and say what they should.
func TestAction(t *testing.T) {
	text, err := os.ReadFile("../.github/actions/verify/action.yml")
	require.NoError(t, err)
	var a action
	require.NoError(t, yaml.Unmarshal(text, &a))
	require.Equal(t, "composite", a.Runs.Using)
	require.Equal(t, "${{ inputs.report }}", a.Outputs["report"].Value)
	dumps, err := filepath.Abs("../golden/dumps")
	require.NoError(t, err)

	dir, binary := t.TempDir(), filepath.Join(program(t), "plumbline")
	clean := map[string]string{"paths": dumps + "/trl-grpo/clean/bnpo_batch_std", "profile": "trl-grpo@1.16"}
	if !cases.All { // its own build compiles every package anew, with other flags than all other tests
		clean["binary"] = binary
	}
	code, summary, output, log := runAction(t, &a, dir, clean)
	require.Equal(t, 0, code, log)
	require.Contains(t, summary, "## ✅ verify dump")
	require.Equal(t, "exit-code=0\n", output)
	var report struct{ Exit int }
	text, err = os.ReadFile(filepath.Join(dir, "verify-report.json"))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &report))
	require.Zero(t, report.Exit)

	code, summary, output, log = runAction(t, &a, dir, map[string]string{"paths": dumps + "/trl-grpo/faulty/clip_max_for_min/*", "binary": binary, "args": "--steps 1..2 -q", "report": "r.json"})
	require.Equal(t, 1, code, log)
	require.Contains(t, log, "::error title=verify dump")
	require.LessOrEqual(t, strings.Count(log, "::error")+strings.Count(log, "::warning"), 10)
	require.Contains(t, summary, "## ❌ verify dump")
	require.Equal(t, "exit-code=1\n", output)
	require.FileExists(t, filepath.Join(dir, "r.json"))

	code, _, output, log = runAction(t, &a, dir, map[string]string{"paths": "$(touch owned) ; touch owned", "binary": binary})
	require.Equal(t, 2, code, log)
	require.Equal(t, "exit-code=2\n", output)
	require.NoFileExists(t, filepath.Join(dir, "owned"))
}
