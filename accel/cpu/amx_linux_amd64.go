package cpu

import (
	"fmt"
	"syscall"
)

// askForTiles requests the 8 KB of tile data for all threads of the process: arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA).
// A sandbox may refuse.
func askForTiles() string {
	const sysArchPrctl, requestPermission, tileData = 158, 0x1023, 18
	if _, _, errno := syscall.RawSyscall(sysArchPrctl, requestPermission, tileData, 0); errno != 0 {
		return fmt.Sprintf("the operating system refuses AMX tiles: %v", errno)
	}
	return ""
}
