! torchferry.h for Fortran: constants, structures and functions as they are in C. Programs use module torchferry.
module torchferry_c
  use, intrinsic :: iso_c_binding
  implicit none
  public

  integer(c_int32_t), parameter :: TF_ABI_VERSION = 5
  integer(c_int32_t), parameter :: TF_OK = 0, TF_ERROR_INTERNAL = 1, TF_ERROR_ARGUMENT = 2, TF_ERROR_HANDLE = 3, &
    TF_ERROR_FILE = 4, TF_ERROR_ARCHIVE = 5, TF_ERROR_NAME = 6, TF_ERROR_COUNT = 7, TF_ERROR_SHAPE = 8, &
    TF_ERROR_DTYPE = 9, TF_ERROR_DEVICE = 10, TF_ERROR_STRIDE = 11, TF_ERROR_BUFFER = 12, TF_ERROR_MODEL = 13, &
    TF_ERROR_UNAVAILABLE = 14, TF_ERROR_MEMORY = 15, TF_ERROR_FROZEN = 16, TF_ERROR_MISMATCH = 17, &
    TF_ERROR_ENVELOPE = 18, TF_NOT_CONVERGED = 19, TF_ERROR_TRUST = 20, &
    TF_ERROR_SIGNATURE = 21
  integer(c_int32_t), parameter :: TF_TRUST_GRAPHS = 0, TF_TRUST_NATIVE = 1
  integer(c_int32_t), parameter :: TF_ENGINE_TORCHSCRIPT = 0, TF_ENGINE_KERNEL = 1
  integer(c_int32_t), parameter :: TF_ENVELOPE_OFF = 0, TF_ENVELOPE_WARN = 1, TF_ENVELOPE_ERROR = 2
  integer(c_int32_t), parameter :: TF_FLOAT64 = 1, TF_FLOAT32 = 2, TF_INT64 = 5, TF_INT32 = 6
  integer(c_int32_t), parameter :: TF_CPU = 1
  integer, parameter :: MAX_RANK = 5

  type, bind(c) :: c_device
    integer(c_int32_t) :: type, index
  end type

  type, bind(c) :: c_tensor
    type(c_ptr) :: data
    integer(c_int32_t) :: dtype, rank
    type(c_ptr) :: shape, strides
    type(c_device) :: device
  end type

  type, bind(c) :: c_variable
    type(c_ptr) :: name, by
    integer(c_int32_t) :: dtype, rank
    type(c_ptr) :: shape
  end type

  type, bind(c) :: c_options
    integer(c_size_t) :: size
    integer(c_int32_t) :: settable_parameters, intra_op_threads, fusion_depth, optimize, check_integrity, &
      envelope, keep_memory, engine, trust
    type(c_ptr) :: public_key
  end type

  interface
    function c_tf_abi_version() &
      bind(c, name="tf_abi_version") result(status)
      import :: c_ptr, c_int32_t, c_tensor, c_variable, c_options
      integer(c_int32_t) :: status
    end function
    function c_tf_version() &
      bind(c, name="tf_version") result(text)
      import :: c_ptr, c_int32_t, c_tensor, c_variable, c_options
      type(c_ptr) :: text
    end function
    function c_tf_status_name(code) &
      bind(c, name="tf_status_name") result(text)
      import :: c_ptr, c_int32_t, c_tensor, c_variable, c_options
      integer(c_int32_t), value :: code
      type(c_ptr) :: text
    end function
    function c_tf_last_error(model) &
      bind(c, name="tf_last_error") result(text)
      import :: c_ptr, c_int32_t, c_tensor, c_variable, c_options
      type(c_ptr), value :: model
      type(c_ptr) :: text
    end function
    function c_tf_last_warning() &
      bind(c, name="tf_last_warning") result(text)
      import :: c_ptr, c_int32_t, c_tensor, c_variable, c_options
      type(c_ptr) :: text
    end function
    function c_tf_default_options(options) &
      bind(c, name="tf_default_options") result(status)
      import :: c_ptr, c_int32_t, c_tensor, c_variable, c_options
      type(c_options), intent(out) :: options
      integer(c_int32_t) :: status
    end function
    function c_tf_load(path, device, options, model) &
      bind(c, name="tf_load") result(status)
      import :: c_ptr, c_int32_t, c_tensor, c_variable, c_options
      type(c_ptr), value :: path, device
      type(c_options), intent(in) :: options
      type(c_ptr), intent(out) :: model
      integer(c_int32_t) :: status
    end function
    function c_tf_close(model) &
      bind(c, name="tf_close") result(status)
      import :: c_ptr, c_int32_t, c_tensor, c_variable, c_options
      type(c_ptr), value :: model
      integer(c_int32_t) :: status
    end function
    function c_tf_name(model, text) &
      bind(c, name="tf_name") result(status)
      import :: c_ptr, c_int32_t, c_tensor, c_variable, c_options
      type(c_ptr), value :: model
      type(c_ptr), intent(out) :: text
      integer(c_int32_t) :: status
    end function
    function c_tf_engine(model, text) &
      bind(c, name="tf_engine") result(status)
      import :: c_ptr, c_int32_t, c_tensor, c_variable, c_options
      type(c_ptr), value :: model
      type(c_ptr), intent(out) :: text
      integer(c_int32_t) :: status
    end function
    function c_tf_contract_json(model, text) &
      bind(c, name="tf_contract_json") result(status)
      import :: c_ptr, c_int32_t, c_tensor, c_variable, c_options
      type(c_ptr), value :: model
      type(c_ptr), intent(out) :: text
      integer(c_int32_t) :: status
    end function
    function c_tf_batch_ndim(model, number) &
      bind(c, name="tf_batch_ndim") result(status)
      import :: c_ptr, c_int32_t, c_tensor, c_variable, c_options
      type(c_ptr), value :: model
      integer(c_int32_t), intent(out) :: number
      integer(c_int32_t) :: status
    end function
    function c_tf_method_count(model, number) &
      bind(c, name="tf_method_count") result(status)
      import :: c_ptr, c_int32_t, c_tensor, c_variable, c_options
      type(c_ptr), value :: model
      integer(c_int32_t), intent(out) :: number
      integer(c_int32_t) :: status
    end function
    function c_tf_parameter_count(model, number) &
      bind(c, name="tf_parameter_count") result(status)
      import :: c_ptr, c_int32_t, c_tensor, c_variable, c_options
      type(c_ptr), value :: model
      integer(c_int32_t), intent(out) :: number
      integer(c_int32_t) :: status
    end function
    function c_tf_method_name(model, index, text) &
      bind(c, name="tf_method_name") result(status)
      import :: c_ptr, c_int32_t, c_tensor, c_variable, c_options
      type(c_ptr), value :: model
      integer(c_int32_t), value :: index
      type(c_ptr), intent(out) :: text
      integer(c_int32_t) :: status
    end function
    function c_tf_input_count(model, method, number) &
      bind(c, name="tf_input_count") result(status)
      import :: c_ptr, c_int32_t, c_tensor, c_variable, c_options
      type(c_ptr), value :: model, method
      integer(c_int32_t), intent(out) :: number
      integer(c_int32_t) :: status
    end function
    function c_tf_input(model, method, index, variable) &
      bind(c, name="tf_input") result(status)
      import :: c_ptr, c_int32_t, c_tensor, c_variable, c_options
      type(c_ptr), value :: model, method
      integer(c_int32_t), value :: index
      type(c_variable), intent(out) :: variable
      integer(c_int32_t) :: status
    end function
    function c_tf_output_count(model, method, number) &
      bind(c, name="tf_output_count") result(status)
      import :: c_ptr, c_int32_t, c_tensor, c_variable, c_options
      type(c_ptr), value :: model, method
      integer(c_int32_t), intent(out) :: number
      integer(c_int32_t) :: status
    end function
    function c_tf_output(model, method, index, variable) &
      bind(c, name="tf_output") result(status)
      import :: c_ptr, c_int32_t, c_tensor, c_variable, c_options
      type(c_ptr), value :: model, method
      integer(c_int32_t), value :: index
      type(c_variable), intent(out) :: variable
      integer(c_int32_t) :: status
    end function
    function c_tf_parameter(model, index, variable) &
      bind(c, name="tf_parameter") result(status)
      import :: c_ptr, c_int32_t, c_tensor, c_variable, c_options
      type(c_ptr), value :: model
      integer(c_int32_t), value :: index
      type(c_variable), intent(out) :: variable
      integer(c_int32_t) :: status
    end function
    function c_tf_call(model, method, n_inputs, inputs, n_outputs, outputs) &
      bind(c, name="tf_call") result(status)
      import :: c_ptr, c_int32_t, c_tensor, c_variable, c_options
      type(c_ptr), value :: model, method
      integer(c_int32_t), value :: n_inputs, n_outputs
      type(c_tensor), intent(in) :: inputs(*), outputs(*)
      integer(c_int32_t) :: status
    end function
    function c_tf_call_named(model, method, n_inputs, input_names, inputs, n_outputs, output_names, outputs) &
      bind(c, name="tf_call_named") result(status)
      import :: c_ptr, c_int32_t, c_tensor, c_variable, c_options
      type(c_ptr), value :: model, method
      integer(c_int32_t), value :: n_inputs, n_outputs
      type(c_ptr), intent(in) :: input_names(*), output_names(*)
      type(c_tensor), intent(in) :: inputs(*), outputs(*)
      integer(c_int32_t) :: status
    end function
    function c_tf_set_parameter(model, name, tensor) &
      bind(c, name="tf_set_parameter") result(status)
      import :: c_ptr, c_int32_t, c_tensor, c_variable, c_options
      type(c_ptr), value :: model, name
      type(c_tensor), intent(in) :: tensor
      integer(c_int32_t) :: status
    end function
    function c_tf_get_parameter(model, name, tensor) &
      bind(c, name="tf_get_parameter") result(status)
      import :: c_ptr, c_int32_t, c_tensor, c_variable, c_options
      type(c_ptr), value :: model, name
      type(c_tensor), intent(in) :: tensor
      integer(c_int32_t) :: status
    end function
    function c_tf_to(model, device) &
      bind(c, name="tf_to") result(status)
      import :: c_ptr, c_int32_t, c_tensor, c_variable, c_options
      type(c_ptr), value :: model, device
      integer(c_int32_t) :: status
    end function
    function c_tf_synchronize(model) &
      bind(c, name="tf_synchronize") result(status)
      import :: c_ptr, c_int32_t, c_tensor, c_variable, c_options
      type(c_ptr), value :: model
      integer(c_int32_t) :: status
    end function
    function c_tf_run_cases(model, compared, failed) &
      bind(c, name="tf_run_cases") result(status)
      import :: c_ptr, c_int32_t, c_tensor, c_variable, c_options
      type(c_ptr), value :: model
      integer(c_int32_t), intent(out) :: compared, failed
      integer(c_int32_t) :: status
    end function

    ! The C library's, for text that came from C.
    function c_strlen(text) bind(c, name="strlen") result(length)
      import :: c_ptr, c_size_t
      type(c_ptr), value :: text
      integer(c_size_t) :: length
    end function
  end interface

contains

  ! Text for C; blanks at the end do not count.
  function c_text(text) result(chars)
    character(*), intent(in) :: text
    character(kind=c_char) :: chars(len_trim(text) + 1)
    chars = padded(text, len_trim(text) + 1)
  end function

  function padded(text, length) result(chars)
    character(*), intent(in) :: text
    integer, intent(in) :: length
    character(kind=c_char) :: chars(length)
    integer :: i
    chars = c_null_char
    do i = 1, min(len_trim(text), length - 1)
      chars(i) = text(i:i)
    end do
  end function

  ! Text from C; empty for a null pointer.
  function f_text(text) result(copy)
    type(c_ptr), intent(in) :: text
    character(:), allocatable :: copy
    character(kind=c_char), pointer :: chars(:)
    integer :: i
    copy = ""
    if (.not. c_associated(text)) return
    call c_f_pointer(text, chars, [c_strlen(text)])
    deallocate (copy)
    allocate (character(size(chars)) :: copy)
    do i = 1, size(chars)
      copy(i:i) = chars(i)
    end do
  end function

end module torchferry_c
