package internal_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

// The examples for CI are files that GitHub and GitLab read, and the command of verify in them runs: `plumbline CMD` of the wheel is `verify CMD`.
// The Python examples are run by make bridges, which has the frameworks.
func TestExamples(t *testing.T) {
	read := func(name string, to any) {
		text, err := os.ReadFile(filepath.Join("../examples", name))
		require.NoError(t, err)
		if filepath.Ext(name) == ".ipynb" {
			require.NoError(t, json.Unmarshal(text, to), name)
		} else {
			require.NoError(t, yaml.Unmarshal(text, to), name)
		}
	}
	var github struct {
		On   []string
		Jobs map[string]struct {
			RunsOn string `yaml:"runs-on"`
			Steps  []struct{ Uses, Run string }
		}
	}
	read("github/plumbline.yml", &github)
	require.Equal(t, []string{"pull_request"}, github.On)
	job := github.Jobs["verify"]
	require.Equal(t, "ubuntu-latest", job.RunsOn)
	var runs []string
	for _, step := range job.Steps {
		require.NotEqual(t, step.Uses == "", step.Run == "", "a step uses an action or runs a command")
		runs = append(runs, step.Run)
	}
	require.Contains(t, runs[len(runs)-1], "plumbline run ")
	require.Contains(t, strings.Join(runs, "\n"), "plumbline-rl", "the distribution's name")

	var gitlab map[string]struct {
		Image     string
		Script    []string
		Artifacts struct {
			When    string
			Reports struct{ JUnit string }
		}
	}
	read("gitlab/gitlab-ci.yml", &gitlab)
	one := gitlab["plumbline"]
	require.Equal(t, "always", one.Artifacts.When, "the report of a failure is what is wanted")
	bin, dir := program(t), t.TempDir()
	for folder, code := range map[string]int{"clean": 0, "pad_in_denominator": 1} {
		require.NoError(t, os.RemoveAll(filepath.Join(dir, "run")))
		require.NoError(t, os.CopyFS(filepath.Join(dir, "run"), os.DirFS(filepath.Join("../golden/demo", folder))))
		cmd := exec.Command("bash", "-ec", one.Script[len(one.Script)-1])
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "PATH="+bin+string(os.PathListSeparator)+os.Getenv("PATH"))
		out, _ := cmd.CombinedOutput()
		require.Equal(t, code, cmd.ProcessState.ExitCode(), "%s", out)
		report, err := os.ReadFile(filepath.Join(dir, one.Artifacts.Reports.JUnit))
		require.NoError(t, err)
		require.Equal(t, code == 1, strings.Contains(string(report), "AGG-PAD-DENOMINATOR"))
	}

	var notebook struct {
		Format int `json:"nbformat"`
		Cells  []struct {
			Type   string `json:"cell_type"`
			ID     string
			Source []string
		}
	}
	read("judge.ipynb", &notebook)
	require.Equal(t, 4, notebook.Format)
	code := ""
	for _, c := range notebook.Cells {
		require.NotEmpty(t, c.ID, "nbformat 4.5 gives every cell a name")
		if c.Type == "code" {
			code += strings.Join(c.Source, "") + "\n"
		}
	}
	require.Contains(t, code, "plumbline.dump(")
	require.Contains(t, code, "plumbline.verdict(")
}
