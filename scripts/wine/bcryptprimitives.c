/* Rust's standard library needs ProcessPrng, which Wine has only since version 9. */

#include <windows.h>

BOOLEAN NTAPI SystemFunction036(PVOID bytes, ULONG len);

__declspec(dllexport) BOOL WINAPI ProcessPrng(PBYTE bytes, SIZE_T len)
{
    return SystemFunction036(bytes, (ULONG)len);
}
