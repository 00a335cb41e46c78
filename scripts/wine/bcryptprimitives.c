/* Rust's standard library wants ProcessPrng, which Wine has only from version 9 on. */

#include <windows.h>

BOOLEAN NTAPI SystemFunction036(PVOID bytes, ULONG len);

__declspec(dllexport) BOOL WINAPI ProcessPrng(PBYTE bytes, SIZE_T len)
{
    return SystemFunction036(bytes, (ULONG)len);
}
