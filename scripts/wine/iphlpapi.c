/*
 * An iphlpapi.dll for tests under Wine 8. Wine's own lacks the functions that set an interface's MTU and addresses: a call of one
 * ends the process. Here they succeed and do nothing, because tun.py has set both: an address is always there already. Wine's own
 * finds interfaces that are gone, so it is asked only for others. All other functions are Wine's own.
 */

#include <winsock2.h>
#include <ws2ipdef.h>
#include <iphlpapi.h>

/* Each function is exported under its name, and jumps to Wine's. */
#define WINES(name)                                                                                                     \
    void *real_##name;                                                                                                  \
    __asm__(".globl " #name "\n" #name ": jmp *real_" #name "(%rip)\n");
#define ALL(X)                                                                                                          \
    X(ConvertInterfaceLuidToAlias)                                                                                      \
    X(ConvertInterfaceLuidToGuid)                                                                                       \
    X(ConvertInterfaceLuidToIndex)                                                                                      \
    X(ConvertLengthToIpv4Mask)                                                                                          \
    X(GetAdaptersAddresses)                                                                                             \
    X(GetIfEntry2)                                                                                                      \
    X(GetInterfaceInfo)                                                                                                 \
    X(GetIpForwardTable)                                                                                                \
    X(GetBestInterfaceEx)
ALL(WINES)

static DWORD (WINAPI *real_ConvertInterfaceAliasToLuid)(const WCHAR *name, NET_LUID *luid);

DWORD WINAPI ConvertInterfaceAliasToLuid(const WCHAR *name, NET_LUID *luid)
{
    WCHAR settings[MAX_PATH] = L"Z:\\proc\\sys\\net\\ipv4\\conf\\";
    wcsncat(settings, name, MAX_PATH - wcslen(settings) - 1);
    if (GetFileAttributesW(settings) == INVALID_FILE_ATTRIBUTES)
        return ERROR_INVALID_PARAMETER;
    return real_ConvertInterfaceAliasToLuid(name, luid);
}

void WINAPI InitializeIpInterfaceEntry(MIB_IPINTERFACE_ROW *row)
{
    memset(row, 0, sizeof *row);
}

DWORD WINAPI GetIpInterfaceEntry(MIB_IPINTERFACE_ROW *row)
{
    (void)row;
    return NO_ERROR;
}

DWORD WINAPI SetIpInterfaceEntry(MIB_IPINTERFACE_ROW *row)
{
    (void)row;
    return NO_ERROR;
}

void WINAPI InitializeUnicastIpAddressEntry(MIB_UNICASTIPADDRESS_ROW *row)
{
    memset(row, 0, sizeof *row);
}

DWORD WINAPI CreateUnicastIpAddressEntry(const MIB_UNICASTIPADDRESS_ROW *row)
{
    (void)row;
    return ERROR_OBJECT_ALREADY_EXISTS;
}

DWORD WINAPI GetUnicastIpAddressEntry(MIB_UNICASTIPADDRESS_ROW *row)
{
    row->DadState = IpDadStatePreferred;
    return NO_ERROR;
}

BOOL WINAPI DllMain(HINSTANCE self, DWORD reason, void *reserved)
{
    (void)self, (void)reserved;
    if (reason != DLL_PROCESS_ATTACH)
        return TRUE;
    HMODULE wines = LoadLibraryW(L"C:\\windows\\system32\\iphlpapi.dll");
#define FIND(name) real_##name = (void *)GetProcAddress(wines, #name);
    ALL(FIND)
    FIND(ConvertInterfaceAliasToLuid)
    return wines != NULL && wines != self;
}
