package internal_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// What CONTRIBUTING.md sends its reader to is there: files and folders, functions, make targets, tests.
func TestContributingIsTrue(t *testing.T) {
	text, err := os.ReadFile("../CONTRIBUTING.md")
	require.NoError(t, err)
	makefile, err := os.ReadFile("../Makefile")
	require.NoError(t, err)
	paths, names := 0, 0
	for _, m := range regexp.MustCompile("`([^`\n]+)`").FindAllStringSubmatch(string(text), -1) {
		quoted := m[1]
		if target, is := strings.CutPrefix(quoted, "make "); is {
			require.Contains(t, string(makefile), "\n"+strings.Fields(target)[0]+":", quoted)
			continue
		}
		for _, word := range strings.FieldsFunc(quoted, func(r rune) bool { return strings.ContainsRune(" ,'|", r) }) {
			path := strings.TrimSuffix(strings.TrimPrefix(word, "./"), "/...")
			if !regexp.MustCompile(`^(cmd|internal|verify|reference|golden|accel|benchmarks)(/|$)|^\.ci/`).MatchString(path) || strings.HasSuffix(path, "/x.go") {
				continue
			}
			list, err := filepath.Glob(filepath.Join("..", path))
			require.NoError(t, err)
			require.NotEmpty(t, list, "%s in %q", path, quoted)
			paths++
		}
	}
	require.Greater(t, paths, 30)
	functions := func(dir string) string {
		out, err := exec.Command("grep", "-rhoE", `^(func( \([^)]*\))?|type|var) [A-Za-z]+`, "--include=*.go", filepath.Join("..", dir)).Output()
		require.NoError(t, err)
		return string(out)
	}
	for dir, list := range map[string]string{
		"verify/dump": "Judge step add", "verify/stage": "Judge Check", "verify/check": "Exit Result", "internal/bind": "policyLaws TestReferencePolicyLaws",
		"internal/train":  "begin train scored save Policy Optimizer Sample Accumulate Step causalTrainers TestAnotherPolicyAndOptimizer TestInterruptedInARollout",
		"internal/format": "Malformed", "cmd/train": "TestKilled", "verify/plant": "TestPlants",
	} {
		there := functions(dir)
		for _, name := range strings.Fields(list) {
			require.Regexp(t, `(?m) `+name+`$`, there, dir)
			names++
		}
	}
	require.Greater(t, names, 20)
}
