#include "textflag.h"

// func rest()
TEXT ·rest(SB), NOSPLIT, $0-0
	PAUSE
	RET
