package op

import (
	"fmt"
	"os"
	"slices"
	"strings"
)

// RequireEnv names the environment variable with the variants that must run: VERIFY_REQUIRE=avx2,avx512vnni.
const RequireEnv = "VERIFY_REQUIRE"

// TB is what a suite needs of a testing.TB.
type TB interface {
	Helper()
	Logf(format string, args ...any)
	Fatalf(format string, args ...any)
	Skipf(format string, args ...any)
}

// Skip skips a test for the reason that a variant cannot run here, or fails it if [RequireEnv] names the variant.
func Skip(t TB, variant, reason string) {
	t.Helper()
	if slices.Contains(strings.Split(os.Getenv(RequireEnv), ","), variant) {
		t.Fatalf("%s is required by %s: %s", variant, RequireEnv, reason)
	}
	t.Skipf("not run: %s", reason)
}

// Test runs n cases and fails t with the first that fails and the command that repeats it.
func (o Op) Test(t TB, variant string, seed uint64, n int) {
	t.Helper()
	r := o.Check(seed, n, false)
	if !r.OK() {
		repeat := ""
		if r.Failed > 0 {
			repeat = fmt.Sprintf("; repeat: verify ops --run '^%s$' --variant %s --case %v", o.Name, variant, r.First)
		}
		t.Fatalf("%s %s: %v%s", o.Name, variant, r, repeat)
	}
	t.Logf("%s %s: %v", o.Name, variant, r)
}
