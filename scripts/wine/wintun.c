/*
 * A wintun.dll for tests under Wine: an adapter is a Linux TUN device, which tun.py opens.
 *
 * It has the functions that the crate wintun uses, with the results and last errors that wintun.h names. Two rings hold
 * packets as Wintun's do: a packet takes four bytes and its length, rounded up to a multiple of four. One thread reads from
 * the helper's socket into the receive ring, and drops packets for which there is no room. Another thread sends the packets
 * of the send ring, in the order in which they were allocated.
 *
 * Environment variables: RTP_TUN_PORT is the helper's port on 127.0.0.1. RTP_TUN_RING is the size of both rings, in bytes.
 * RTP_TUN_FAIL=N:CODE makes the first N creations fail with this error of Windows, RTP_TUN_LINGER=MS lets the device stay for a time after
 * its adapter was closed, and RTP_TUN_CORRUPT=N makes the ring to the stack corrupt after N packets. Standard error gets a line for each
 * creation, with the beginning of its GUID, and one with the counts at the end of a session.
 */

#include <winsock2.h>
#include <stdio.h>
#include <stdlib.h>

#define HEADER 4
#define COST(len) (HEADER + (((len) + 3) & ~3u))
#define MAX_PACKET 0xffff

typedef struct packet {
    struct packet *next;
    DWORD len;
    BOOL ready;
    BYTE bytes[];
} packet;

/* Packets in order, and the bytes of the ring that they take. */
typedef struct {
    packet *first, **end;
    DWORD used, capacity;
    DWORD count, refused;
} ring;

typedef struct {
    SOCKET helper;
    CRITICAL_SECTION lock;
    CONDITION_VARIABLE to_send;
    ring received, sent;
    HANDLE readable, threads[2];
    BOOL ends, gone;
} session;

typedef struct {
    SOCKET helper;
} adapter;

static BOOL receive_all(SOCKET helper, void *bytes, DWORD len)
{
    for (DWORD at = 0; at < len;) {
        int got = recv(helper, (char *)bytes + at, (int)(len - at), 0);
        if (got <= 0)
            return FALSE;
        at += (DWORD)got;
    }
    return TRUE;
}

static BOOL send_all(SOCKET helper, const void *bytes, DWORD len)
{
    for (DWORD at = 0; at < len;) {
        int put = send(helper, (const char *)bytes + at, (int)(len - at), 0);
        if (put <= 0)
            return FALSE;
        at += (DWORD)put;
    }
    return TRUE;
}

/* Appends a packet, if the ring has room. The lock is held. */
static packet *append(ring *ring, DWORD len)
{
    packet *new;
    if (ring->used + COST(len) > ring->capacity || !(new = malloc(sizeof *new + len))) {
        ring->refused++;
        return NULL;
    }
    new->next = NULL;
    new->len = len;
    new->ready = FALSE;
    *ring->end = new;
    ring->end = &new->next;
    ring->used += COST(len);
    ring->count++;
    return new;
}

/* Removes the first packet; its room stays in use. The lock is held. */
static packet *take(ring *ring)
{
    packet *first = ring->first;
    if (first && !(ring->first = first->next))
        ring->end = &ring->first;
    return first;
}

static void init(ring *ring, DWORD capacity)
{
    memset(ring, 0, sizeof *ring);
    ring->end = &ring->first;
    ring->capacity = capacity;
}

static void empty(ring *ring)
{
    packet *packet;
    while ((packet = take(ring)))
        free(packet);
}

static DWORD WINAPI receive(void *argument)
{
    session *session = argument;
    BYTE bytes[MAX_PACKET];
    DWORD len;
    while (receive_all(session->helper, &len, sizeof len) && len <= MAX_PACKET && receive_all(session->helper, bytes, len)) {
        EnterCriticalSection(&session->lock);
        packet *packet = append(&session->received, len);
        if (packet)
            memcpy(packet->bytes, bytes, len);
        LeaveCriticalSection(&session->lock);
        SetEvent(session->readable);
    }
    EnterCriticalSection(&session->lock);
    session->gone = TRUE;
    LeaveCriticalSection(&session->lock);
    SetEvent(session->readable);
    return 0;
}

static DWORD WINAPI transmit(void *argument)
{
    session *session = argument;
    EnterCriticalSection(&session->lock);
    while (!session->ends && !session->gone) {
        if (!session->sent.first || !session->sent.first->ready) {
            SleepConditionVariableCS(&session->to_send, &session->lock, 1000);
            continue;
        }
        packet *packet = take(&session->sent);
        LeaveCriticalSection(&session->lock);
        BOOL is_sent = send_all(session->helper, &packet->len, sizeof packet->len) &&
                       send_all(session->helper, packet->bytes, packet->len);
        EnterCriticalSection(&session->lock);
        session->sent.used -= COST(packet->len);
        session->gone |= !is_sent;
        free(packet);
    }
    LeaveCriticalSection(&session->lock);
    return 0;
}

static DWORD number(const char *variable, DWORD otherwise)
{
    const char *text = getenv(variable);
    return text ? (DWORD)strtoul(text, NULL, 10) : otherwise;
}

static void (WINAPI *logger)(int level, ULONGLONG at, const WCHAR *line);

/* Logs an error, as Wintun does, and sets it. */
static void *fail(const WCHAR *line, DWORD error)
{
    if (logger)
        logger(2, 0, line);
    SetLastError(error);
    return NULL;
}

/* Connects to the helper, which makes or opens the device and then sends a Windows error code, or 0. */
static adapter *attach(const WCHAR *name, BOOL opens)
{
    WSADATA data;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((u_short)number("RTP_TUN_PORT", 0))};
    struct {
        char name[248];
        DWORD linger_ms, opens;
    } request = {.linger_ms = number("RTP_TUN_LINGER", 0), .opens = (DWORD)opens};
    DWORD error = ERROR_FILE_NOT_FOUND;
    BOOL nodelay = TRUE;
    WSAStartup(MAKEWORD(2, 2), &data);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    WideCharToMultiByte(CP_UTF8, 0, name, -1, request.name, sizeof request.name - 1, NULL, NULL);
    SOCKET helper = socket(AF_INET, SOCK_STREAM, IPPROTO_TCP);
    setsockopt(helper, IPPROTO_TCP, TCP_NODELAY, (char *)&nodelay, sizeof nodelay);
    adapter *new = malloc(sizeof *new);
    if (new && !connect(helper, (struct sockaddr *)&address, sizeof address) && send_all(helper, &request, sizeof request) &&
        receive_all(helper, &error, sizeof error) && !error) {
        new->helper = helper;
        return new;
    }
    free(new);
    closesocket(helper);
    return fail(opens ? L"Failed to open the adapter" : L"Failed to create the adapter", error);
}

adapter *WINAPI WintunCreateAdapter(const WCHAR *name, const WCHAR *type, const GUID *guid)
{
    static DWORD tried;
    DWORD failures = 0, code = 0;
    const char *text = getenv("RTP_TUN_FAIL");
    (void)type;
    fprintf(stderr, "wintun: creation with %08lx\n", guid->Data1);
    if (text && sscanf(text, "%lu:%lu", &failures, &code) == 2 && tried++ < failures)
        return fail(L"Failed to set up the adapter", code);
    return attach(name, FALSE);
}

adapter *WINAPI WintunOpenAdapter(const WCHAR *name)
{
    return attach(name, TRUE);
}

/* The helper removes the device when its connection ends. */
void WINAPI WintunCloseAdapter(adapter *adapter)
{
    closesocket(adapter->helper);
    free(adapter);
}

void WINAPI WintunGetAdapterLUID(adapter *adapter, ULONGLONG *luid)
{
    (void)adapter;
    *luid = 0;
}

DWORD WINAPI WintunGetRunningDriverVersion(void)
{
    return 14;
}

BOOL WINAPI WintunDeleteDriver(void)
{
    return TRUE;
}

void WINAPI WintunSetLogger(void *new)
{
    logger = new;
}

session *WINAPI WintunStartSession(adapter *adapter, DWORD capacity)
{
    session *new = calloc(1, sizeof *new);
    DWORD error = 0;
    capacity = number("RTP_TUN_RING", capacity);
    if (!send_all(adapter->helper, &error, sizeof error) || !receive_all(adapter->helper, &error, sizeof error) || error) {
        free(new);
        return fail(L"Failed to register rings", error ? error : ERROR_HANDLE_EOF);
    }
    new->helper = adapter->helper;
    InitializeCriticalSection(&new->lock);
    InitializeConditionVariable(&new->to_send);
    init(&new->received, capacity);
    init(&new->sent, capacity);
    new->readable = CreateEventW(NULL, FALSE, FALSE, NULL);
    new->threads[0] = CreateThread(NULL, 0, receive, new, 0, NULL);
    new->threads[1] = CreateThread(NULL, 0, transmit, new, 0, NULL);
    return new;
}

void WINAPI WintunEndSession(session *session)
{
    EnterCriticalSection(&session->lock);
    session->ends = TRUE;
    LeaveCriticalSection(&session->lock);
    WakeAllConditionVariable(&session->to_send);
    shutdown(session->helper, SD_BOTH);
    WaitForMultipleObjects(2, session->threads, TRUE, INFINITE);
    fprintf(stderr, "wintun: %lu received, %lu dropped, %lu sent, %lu refused\n", session->received.count,
            session->received.refused, session->sent.count, session->sent.refused);
    CloseHandle(session->threads[0]);
    CloseHandle(session->threads[1]);
    CloseHandle(session->readable);
    empty(&session->received);
    empty(&session->sent);
    DeleteCriticalSection(&session->lock);
    free(session);
}

HANDLE WINAPI WintunGetReadWaitEvent(session *session)
{
    return session->readable;
}

BYTE *WINAPI WintunReceivePacket(session *session, DWORD *len)
{
    EnterCriticalSection(&session->lock);
    BOOL corrupt = session->received.count >= number("RTP_TUN_CORRUPT", MAXDWORD);
    packet *packet = corrupt ? NULL : take(&session->received);
    DWORD error = corrupt ? ERROR_INVALID_DATA : session->gone ? ERROR_HANDLE_EOF : ERROR_NO_MORE_ITEMS;
    LeaveCriticalSection(&session->lock);
    if (!packet) {
        SetLastError(error);
        return NULL;
    }
    *len = packet->len;
    return packet->bytes;
}

void WINAPI WintunReleaseReceivePacket(session *session, const BYTE *bytes)
{
    packet *of = CONTAINING_RECORD(bytes, packet, bytes);
    EnterCriticalSection(&session->lock);
    session->received.used -= COST(of->len);
    LeaveCriticalSection(&session->lock);
    free(of);
}

BYTE *WINAPI WintunAllocateSendPacket(session *session, DWORD len)
{
    EnterCriticalSection(&session->lock);
    packet *packet = session->gone ? NULL : append(&session->sent, len);
    DWORD error = session->gone ? ERROR_HANDLE_EOF : ERROR_BUFFER_OVERFLOW;
    LeaveCriticalSection(&session->lock);
    if (!packet) {
        SetLastError(error);
        return NULL;
    }
    return packet->bytes;
}

void WINAPI WintunSendPacket(session *session, const BYTE *bytes)
{
    EnterCriticalSection(&session->lock);
    CONTAINING_RECORD(bytes, packet, bytes)->ready = TRUE;
    LeaveCriticalSection(&session->lock);
    WakeConditionVariable(&session->to_send);
}
